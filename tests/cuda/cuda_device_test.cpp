// The CUDA device: memory, streams, errors, graphs.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>

#include "accelerator_tests.h"
#include "batch/staged_upload.h"

namespace strata {
namespace {

using test::kMiB;
using testing::HasSubstr;

class CudaDevice : public test::AcceleratorTest {
 protected:
  CudaDevice() : AcceleratorTest({DeviceKind::cuda, 0}) {}
};

TEST_F(CudaDevice, SaysWhatItIs) {
  const DeviceProperties p = device_->properties();
  EXPECT_GE(p.compute_major, 8);
  EXPECT_GT(p.num_sms, 0);
  EXPECT_GT(p.max_shared_bytes, 48 << 10);
  EXPECT_GT(p.last_level_cache_bytes, 0);
  EXPECT_GT(p.memory_bytes, int64_t{1} << 30);
  EXPECT_THAT(device_->description(), HasSubstr("compute capability"));
}

TEST_F(CudaDevice, ErrorsCarryTheCallAndTheMessageAndLeaveTheDeviceUsable) {
  const Error memory = error_of([&] { device_->allocate(size_t{1} << 50); });
  EXPECT_EQ(memory.code(), ErrorCode::out_of_memory);
  EXPECT_THAT(memory.what(), HasSubstr("cudaMalloc of 1125899906842624 bytes"));
  EXPECT_THAT(memory.what(), HasSubstr("out of memory (cudaErrorMemoryAllocation)"));
  EXPECT_EQ(error_of([&] { device_->allocate(INT64_MAX); }).code(), ErrorCode::out_of_memory);
  EXPECT_EQ(error_of([&] { device_->allocate(-1); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([&] { device_->allocate_host(size_t{1} << 60); }).code(), ErrorCode::out_of_memory);
  const Error copy = error_of([&] { device_->copy(nullptr, nullptr, 16, {}); });
  EXPECT_EQ(copy.code(), ErrorCode::device_failure);
  EXPECT_THAT(copy.what(), HasSubstr("CUDA: cudaMemcpyAsync failed: invalid argument (cudaErrorInvalidValue)"));
  const Error missing = error_of([] { static_cast<void>(open_device({DeviceKind::cuda, 999})); });
  EXPECT_EQ(missing.code(), ErrorCode::unsupported);
  EXPECT_THAT(missing.what(), HasSubstr("cuda:999"));

  void* data = device_->allocate(64);
  device_->fill(data, 7, 64, {});
  EXPECT_TRUE(all(data, 64, 7));
  device_->deallocate(data);
}

TEST_F(CudaDevice, MemoryThatWasGivenBackIsUsedAgain) { reuse_what_was_given_back(); }

TEST_F(CudaDevice, MemoryIsHandedOutOnlyAfterTheWorkThatUsedIt) { hand_out_after_the_work(512 * kMiB, 50); }

TEST_F(CudaDevice, FreeBlocksAreReturnedBeforeMemoryRunsOut) {
  const auto most = static_cast<size_t>(device_->properties().memory_bytes);
  void* large = device_->allocate(most / 2);
  device_->deallocate(large);
  void* larger = device_->allocate(most / 5 * 3);  // does not fit in addition to the first
  EXPECT_NE(larger, nullptr);
  device_->deallocate(larger);
}

TEST_F(CudaDevice, ThreadsMayAllocateAtOnce) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(8, 0);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const OwnedStream stream(device_);
      for (int i = 0; i < 100; ++i) {
        const size_t bytes = size_t{1} << (4 + (i + t) % 14);
        void* data = device_->allocate(bytes);
        const auto value = static_cast<uint8_t>(16 * t + i % 16);
        std::vector<uint8_t> host(bytes);
        device_->fill(data, value, bytes, stream.get());
        device_->copy_to_host(host.data(), data, bytes, stream.get());
        device_->synchronize(stream.get());
        for (const uint8_t byte : host) wrong[static_cast<size_t>(t)] += byte != value;
        device_->deallocate(data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

TEST_F(CudaDevice, EveryDeviceOfTheProcessHasItsOwnMemory) {
  std::vector<std::shared_ptr<Device>> devices{device_, open_device({DeviceKind::cuda, 0})};
  try {
    devices.push_back(open_device({DeviceKind::cuda, 1}));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
  }
  std::vector<void*> blocks;
  for (size_t i = 0; i < devices.size(); ++i) {
    blocks.push_back(devices[i]->allocate(kMiB));
    devices[i]->fill(blocks[i], static_cast<uint8_t>(i + 1), kMiB, {});
  }
  for (size_t i = devices.size(); i-- > 0;) {
    std::vector<uint8_t> host(kMiB);
    devices[i]->copy_to_host(host.data(), blocks[i], kMiB, {});
    devices[i]->synchronize({});
    EXPECT_EQ(std::set<uint8_t>(host.begin(), host.end()), std::set<uint8_t>{static_cast<uint8_t>(i + 1)});
    const OwnedStream stream(devices[i]);
    devices[i]->fill(blocks[i], 0, kMiB, stream.get());
    devices[i]->deallocate(blocks[i]);
  }
}

TEST_F(CudaDevice, EventsOrderStreams) { order_streams(256 * kMiB, 20); }

// The host runs ahead of the device by one step and writes the staging memory of the next: no step may see another's bytes.
TEST_F(CudaDevice, StagingMemoryIsRewrittenOnlyWhenItsCopyIsDone) {
  constexpr size_t kBytes = 8 * kMiB;
  constexpr int kSteps = 32;
  const OwnedStream stream(device_);
  StagedUpload staging(device_, kBytes);
  void* target = device_->allocate(kBytes);
  void* history = device_->allocate(kBytes * kSteps);
  for (int step = 0; step < kSteps; ++step) {
    staging.wait();
    std::memset(staging.memory().data, step + 1, kBytes);
    staging.send(target, kBytes, stream.get());
    device_->copy(static_cast<std::byte*>(history) + step * kBytes, target, kBytes, stream.get());
  }
  device_->synchronize(stream.get());
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_TRUE(all(static_cast<std::byte*>(history) + step * kBytes, kBytes, static_cast<uint8_t>(step + 1))) << step;
  }
  device_->deallocate(target);
  device_->deallocate(history);
}

TEST_F(CudaDevice, ElapsedTimeIsTheDevices) {
  const OwnedStream stream(device_);
  void* data = device_->allocate(512 * kMiB);
  const auto fills = [&](int count) {
    return device_->elapsed_seconds(stream.get(), [&] {
      for (int i = 0; i < count; ++i) device_->fill(data, 1, 512 * kMiB, stream.get());
    });
  };
  // The least of several, as others may use the device too.
  const auto least = [&](int count) { return std::min({fills(count), fills(count), fills(count), fills(count)}); };
  fills(5);
  const double few = least(5), many = least(50);
  EXPECT_GT(few, 5 * 512e6 / 10e12);
  EXPECT_GT(many, 5 * few);
  EXPECT_LT(many, 20 * few);
  device_->deallocate(data);
}

TEST_F(CudaDevice, AGraphReadsWhatMemoryHoldsWhenItIsLaunched) {
  const OwnedStream stream(device_);
  const Event forked = device_->create_event(), done = device_->create_event();
  const OwnedStream aside(device_);
  void* from = device_->allocate(4096);
  void* to = device_->allocate(4096);
  device_->fill(from, 1, 4096, stream.get());
  device_->fill(to, 0, 4096, stream.get());
  const Graph graph = device_->capture(stream.get(), [&] {
    device_->record(forked, stream.get());
    device_->wait(forked, aside.get());
    device_->copy(static_cast<std::byte*>(to) + 2048, from, 2048, aside.get());
    device_->copy(to, from, 2048, stream.get());
    device_->record(done, aside.get());
    device_->wait(done, stream.get());
  });
  device_->synchronize(stream.get());
  EXPECT_TRUE(all(to, 4096, 0)) << "capturing ran it";
  for (const uint8_t value : {1, 9, 200}) {
    device_->fill(from, value, 4096, stream.get());
    device_->launch(graph, stream.get());
    device_->synchronize(stream.get());
    EXPECT_TRUE(all(to, 4096, value));
  }
  device_->destroy_graph(graph);
  device_->destroy_event(forked);
  device_->destroy_event(done);
  device_->deallocate(from);
  device_->deallocate(to);
}

TEST_F(CudaDevice, WhatMayNotBeCapturedIsRefusedAndNothingIsLeftCapturing) {
  const OwnedStream stream(device_);
  device_->deallocate(device_->allocate(100));  // the pool has a block
  EXPECT_EQ(error_of([&] { device_->capture({}, [] {}); }).code(), ErrorCode::invalid_argument);
  const auto failure_of = [&](const std::function<void()>& work) { return error_of([&] { device_->capture(stream.get(), work); }).code(); };
  EXPECT_EQ(failure_of([&] { device_->allocate(100); }), ErrorCode::device_failure);
  EXPECT_EQ(failure_of([&] { device_->allocate_host(100); }), ErrorCode::device_failure);
  EXPECT_EQ(failure_of([&] { device_->synchronize(stream.get()); }), ErrorCode::device_failure);
  EXPECT_EQ(failure_of([&] { throw Error(ErrorCode::unsupported, "of the work"); }), ErrorCode::unsupported);
  const OwnedStream aside(device_);
  const Event forked = device_->create_event();
  void* data = device_->allocate(64);
  EXPECT_EQ(failure_of([&] {  // forked and never joined
              device_->record(forked, stream.get());
              device_->wait(forked, aside.get());
              device_->fill(data, 3, 64, aside.get());
            }),
            ErrorCode::device_failure);
  device_->fill(data, 5, 64, stream.get());
  device_->synchronize(stream.get());
  EXPECT_TRUE(all(data, 64, 5));
  device_->destroy_event(forked);
  device_->deallocate(data);
}

TEST_F(CudaDevice, OthersAllocateWhileAThreadCaptures) { allocate_while_a_thread_captures(); }

}  // namespace
}  // namespace strata
