// The OpenCL device: memory, streams, errors, graphs, programs.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "accelerator_tests.h"
#include "backends/opencl/runtime/opencl_device.h"
#include "backends/opencl/runtime/program.h"
#include "strata/op_set.h"

namespace strata {
namespace {

using test::kMiB;
using testing::HasSubstr;

class OpenClDevice : public test::AcceleratorTest {
 protected:
  OpenClDevice() : AcceleratorTest({DeviceKind::opencl, 0}) {}

  // y = norm of kv rows that all hold `value`.
  RmsNormPairParams norm(const Tensor& kv, const Tensor& weight, const Tensor& y) const {
    return {.kv = kv.view(), .kv_weight = weight.view(), .kv_out = y.view()};
  }
  OpSet ops_ = default_ops();
};

TEST_F(OpenClDevice, SaysWhatItIs) {
  const DeviceProperties p = device_->properties();
  EXPECT_GT(p.num_sms, 0);
  EXPECT_GT(p.max_shared_bytes, 0);
  EXPECT_GT(p.memory_bytes, 100 * kMiB);
  EXPECT_THAT(device_->description(), HasSubstr("OpenCL 3."));
}

TEST_F(OpenClDevice, ErrorsNameTheCallAndLeaveTheDeviceUsable) {
  const Error memory = error_of([&] { device_->allocate(int64_t{1} << 50); });
  EXPECT_EQ(memory.code(), ErrorCode::out_of_memory);
  EXPECT_THAT(memory.what(), HasSubstr("allocation of 1125899906842624 bytes failed; the device has"));
  EXPECT_EQ(error_of([&] { device_->allocate(INT64_MAX); }).code(), ErrorCode::out_of_memory);
  EXPECT_EQ(error_of([&] { device_->allocate(-1); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([&] { device_->allocate_host(int64_t{1} << 60); }).code(), ErrorCode::out_of_memory);
  const Error copy = error_of([&] { device_->copy(nullptr, nullptr, 16, {}); });
  EXPECT_EQ(copy.code(), ErrorCode::device_failure);
  EXPECT_THAT(copy.what(), testing::AnyOf(HasSubstr("OpenCL: the copy of memory failed: CL_INVALID_VALUE (-30)"),         // PoCL, NVIDIA
                                          HasSubstr("OpenCL: the copy of memory failed: CL_INVALID_MEM_OBJECT (-38)")));  // Intel
  const Error missing = error_of([] { static_cast<void>(open_device({DeviceKind::opencl, 999})); });
  EXPECT_EQ(missing.code(), ErrorCode::unsupported);
  EXPECT_THAT(missing.what(), HasSubstr("device opencl:999: this machine has"));

  void* data = device_->allocate(64);
  device_->fill(data, 7, 64, {});
  EXPECT_TRUE(all(data, 64, 7));
  device_->deallocate(data);
}

TEST_F(OpenClDevice, AModuleThatDoesNotBuildSaysWhichAndWhy) {
  const unsigned char garbage[] = "this is neither SPIR-V nor bitcode nor PTX";
  const std::span<const unsigned char> bytes(garbage);
  const opencl::Module module{.name = "broken", .spirv = bytes, .bitcode = bytes, .ptx = bytes};
  opencl::Runtime& runtime = opencl::open_runtime(0, {});
  const Error error = error_of([&] { static_cast<void>(runtime.build(module, "")); });
  EXPECT_EQ(error.code(), ErrorCode::device_failure);
  EXPECT_THAT(error.what(), HasSubstr("the module broken (basic)"));
  EXPECT_EQ(error_of([] { static_cast<void>(opencl::find_module("absent", opencl::Variant::basic)); }).code(), ErrorCode::unsupported);
}

TEST_F(OpenClDevice, ProgramsAreKeptInTheFolderThatConfigNamesAndAFileThatIsSpoiledIsPassedOver) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("strata_opencl_cache_" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  opencl::Runtime& runtime = opencl::open_runtime(0, {});
  const opencl::Module& module = opencl::find_module("norm", opencl::Variant::basic);
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(folder), {}); };
  opencl::release_program(runtime.build(module, folder));
  ASSERT_EQ(files(), 1);
  opencl::release_program(runtime.build(module, folder));
  EXPECT_EQ(files(), 1);
  const std::filesystem::path file = std::filesystem::directory_iterator(folder)->path();
  std::ofstream(file, std::ios::trunc) << "spoiled";
  opencl::release_program(runtime.build(module, folder));
  EXPECT_GT(std::filesystem::file_size(file), 100u) << "it is written anew";
  // Drivers crash on some of these.
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(file));
  for (const std::streamoff kept : {size - 1, size / 2, std::streamoff{64}}) {
    std::filesystem::resize_file(file, static_cast<uintmax_t>(kept));
    opencl::release_program(runtime.build(module, folder));
    EXPECT_EQ(static_cast<std::streamoff>(std::filesystem::file_size(file)), size) << "cut to " << kept;
  }
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekg(size / 2);
  const auto byte = static_cast<char>(damaged.get());
  damaged.seekp(size / 2).put(static_cast<char>(byte ^ 16));
  damaged.close();
  std::filesystem::last_write_time(file, {});
  opencl::release_program(runtime.build(module, folder));
  EXPECT_NE(std::filesystem::last_write_time(file), std::filesystem::file_time_type()) << "a damaged entry is written anew";
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  opencl::release_program(runtime.build(module, folder));
  opencl::release_program(runtime.build(module, "/dev/null/no/such/folder"));
  std::filesystem::remove_all(folder);
}

TEST_F(OpenClDevice, MemoryThatWasGivenBackIsUsedAgain) { reuse_what_was_given_back(); }

TEST_F(OpenClDevice, MemoryIsHandedOutOnlyAfterTheWorkThatUsedIt) { hand_out_after_the_work(32 * kMiB, 20); }

TEST_F(OpenClDevice, ThreadsMayAllocateCopyAndRunAtOnce) {
  constexpr int64_t kRows = 5, kColumns = 512;
  const Tensor weight(device_, DType::f32, {kColumns});
  const std::vector<float> ones(kColumns, 1.0f);
  device_->copy_from_host(weight.view().data, ones.data(), kColumns * 4, {});
  device_->synchronize({});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const OwnedStream stream(device_);
      for (int i = 0; i < 20; ++i) {
        const Tensor x(device_, DType::bf16, {kRows, kColumns}), y(device_, DType::bf16, {kRows, kColumns});
        // Every value is 2 or -2: the norm is 1 or -1.
        std::vector<uint16_t> host(kRows * kColumns, (t + i) % 2 == 0 ? 0x4000 : 0xC000), result(host.size());
        device_->copy_from_host(x.view().data, host.data(), x.allocated_bytes(), stream.get());
        ops_.rms_norm_pair(norm(x, weight, y), {.device = *device_, .stream = stream.get()});
        device_->copy_to_host(result.data(), y.view().data, y.allocated_bytes(), stream.get());
        device_->synchronize(stream.get());
        for (const uint16_t bits : result) wrong[static_cast<size_t>(t)] += bits != ((t + i) % 2 == 0 ? 0x3F80 : 0xBF80);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST_F(OpenClDevice, DevicesOfTheSameNumberShareTheirMemory) {
  const std::shared_ptr<Device> second = open_device({DeviceKind::opencl, 0});
  void* data = device_->allocate(kMiB);
  const OwnedStream stream(second);
  second->fill(data, 9, kMiB, stream.get());
  second->synchronize(stream.get());
  EXPECT_TRUE(all(data, kMiB, 9));
  device_->deallocate(data);
}

TEST_F(OpenClDevice, EventsOrderStreams) {
  const OwnedStream stream(device_);
  const Event event = device_->create_event();
  device_->wait(event, stream.get());  // never recorded: nothing to wait for
  device_->destroy_event(event);
  order_streams(16 * kMiB, 5);
}

TEST_F(OpenClDevice, AGraphReadsWhatMemoryHoldsWhenItIsLaunched) {
  constexpr int64_t kColumns = 512;
  const OwnedStream stream(device_), aside(device_);
  const Event forked = device_->create_event(), done = device_->create_event();
  const Tensor x(device_, DType::bf16, {1, kColumns}), y(device_, DType::bf16, {1, kColumns}), weight(device_, DType::f32, {kColumns});
  const Tensor copy(device_, DType::bf16, {1, kColumns});
  const std::vector<float> ones(kColumns, 1.0f);
  device_->copy_from_host(weight.view().data, ones.data(), kColumns * 4, stream.get());
  device_->fill(y.view().data, 0, y.allocated_bytes(), stream.get());
  device_->fill(copy.view().data, 0, copy.allocated_bytes(), stream.get());
  const Graph graph = device_->capture(stream.get(), [&] {
    device_->record(forked, stream.get());
    device_->wait(forked, aside.get());
    device_->copy(copy.view().data, x.view().data, x.allocated_bytes(), aside.get());
    ops_.rms_norm_pair(norm(x, weight, y), {.device = *device_, .stream = stream.get()});
    device_->record(done, aside.get());
    device_->wait(done, stream.get());
  });
  device_->synchronize(stream.get());
  EXPECT_TRUE(all(y.view().data, 2 * kColumns, 0)) << "capturing ran it";
  for (const uint16_t value : {0x4000, 0xC000, 0x4080}) {
    const std::vector<uint16_t> host(kColumns, value);
    device_->copy_from_host(x.view().data, host.data(), x.allocated_bytes(), stream.get());
    device_->launch(graph, stream.get());
    device_->synchronize(stream.get());
    std::vector<uint16_t> result(kColumns), copied(kColumns);
    device_->copy_to_host(result.data(), y.view().data, y.allocated_bytes(), {});
    device_->copy_to_host(copied.data(), copy.view().data, copy.allocated_bytes(), {});
    device_->synchronize({});
    EXPECT_EQ(result, std::vector<uint16_t>(kColumns, value < 0x8000 ? 0x3F80 : 0xBF80));
    EXPECT_EQ(copied, host);
  }
  device_->destroy_graph(graph);
  device_->destroy_event(forked);
  device_->destroy_event(done);
}

TEST_F(OpenClDevice, WhatMayNotBeCapturedIsRefusedAndNothingIsLeftCapturing) {
  const OwnedStream stream(device_), aside(device_);
  device_->deallocate(device_->allocate(100));  // the pool has a block
  void* const data = device_->allocate(64);
  void* const pinned = device_->allocate_host(64);
  const Event forked = device_->create_event(), outside = device_->create_event();
  device_->record(outside, aside.get());
  std::vector<std::byte> ordinary(64);
  EXPECT_EQ(error_of([&] { static_cast<void>(device_->capture({}, [] {})); }).code(), ErrorCode::invalid_argument);
  const auto failure_of = [&](const std::function<void()>& work) {
    return error_of([&] { static_cast<void>(device_->capture(stream.get(), work)); }).code();
  };
  EXPECT_EQ(failure_of([&] { static_cast<void>(device_->allocate(100)); }), ErrorCode::device_failure);
  EXPECT_EQ(failure_of([&] { static_cast<void>(device_->allocate_host(100)); }), ErrorCode::device_failure);
  EXPECT_EQ(failure_of([&] { device_->synchronize(stream.get()); }), ErrorCode::device_failure);
  EXPECT_EQ(failure_of([&] {
              try {
                device_->synchronize(stream.get());
              } catch (const Error&) {
              }
            }),
            ErrorCode::device_failure)
      << "a work that hides the error";
  EXPECT_EQ(failure_of([&] { device_->copy_from_host(data, ordinary.data(), 64, stream.get()); }), ErrorCode::device_failure);
  EXPECT_EQ(failure_of([&] { device_->wait(outside, stream.get()); }), ErrorCode::device_failure);
  EXPECT_EQ(failure_of([&] { throw Error(ErrorCode::unsupported, "of the work"); }), ErrorCode::unsupported);
  EXPECT_EQ(failure_of([&] { static_cast<void>(device_->capture(stream.get(), [] {})); }), ErrorCode::device_failure);
  EXPECT_EQ(failure_of([&] {  // forked and never joined
              device_->record(forked, stream.get());
              device_->wait(forked, aside.get());
              device_->fill(data, 3, 64, aside.get());
            }),
            ErrorCode::device_failure);
  EXPECT_EQ(error_of([&] { device_->wait(forked, aside.get()); }).code(), ErrorCode::device_failure) << "of a capture that has ended";
  device_->destroy_graph(device_->capture(stream.get(), [&] { device_->copy_from_host(data, pinned, 64, stream.get()); }));
  device_->fill(data, 5, 64, stream.get());
  device_->synchronize(stream.get());
  EXPECT_TRUE(all(data, 64, 5));
  device_->destroy_event(forked);
  device_->destroy_event(outside);
  device_->deallocate_host(pinned);
  device_->deallocate(data);
}

TEST_F(OpenClDevice, OthersAllocateWhileAThreadCaptures) { allocate_while_a_thread_captures(); }

}  // namespace
}  // namespace strata
