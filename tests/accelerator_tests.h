// What the memory, streams and captures of every accelerator's device do.
#pragma once

#include <set>
#include <thread>

#include "device_fixture.h"

namespace strata::test {

inline constexpr int64_t kMiB = int64_t{1} << 20;

class AcceleratorTest : public DeviceTest {
 protected:
  using DeviceTest::DeviceTest;

  void reuse_what_was_given_back() {
    for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{513}, int64_t{70000}, 5 * kMiB}) {
      void* first = device_->allocate(bytes);
      void* second = device_->allocate(bytes);
      EXPECT_NE(first, second);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
      device_->deallocate(first);
      EXPECT_EQ(device_->allocate(bytes), first) << bytes;
      device_->deallocate(first);
      device_->deallocate(first);  // twice is once
      device_->deallocate(second);
      std::set<void*> blocks{device_->allocate(bytes), device_->allocate(bytes), device_->allocate(bytes)};
      EXPECT_EQ(blocks.size(), 3u);
      for (void* block : blocks) device_->deallocate(block);
    }
    device_->deallocate(nullptr);
  }

  // A block may be given back while a stream still writes it; whoever gets it next must not see those writes.
  // fills: enough for the stream to be at work when the block is given back.
  void hand_out_after_the_work(int64_t bytes, int fills) {
    const OwnedStream slow(device_), other(device_);
    void* block = device_->allocate(bytes);
    for (int i = 0; i < fills; ++i) device_->fill(block, 1, bytes, slow.get());
    device_->deallocate(block);
    void* again = device_->allocate(bytes);
    ASSERT_EQ(again, block);
    device_->fill(again, 2, bytes, other.get());
    device_->synchronize(other.get());
    device_->synchronize(slow.get());
    EXPECT_TRUE(all(again, kMiB, 2));
    device_->deallocate(again);
  }

  void order_streams(int64_t bytes, int fills) {
    const OwnedStream a(device_), b(device_);
    const Event event = device_->create_event();
    void* data = device_->allocate(bytes);
    void* copy = device_->allocate(bytes);
    for (int round = 1; round <= 5; ++round) {
      for (int i = 0; i < fills; ++i) device_->fill(data, static_cast<uint8_t>(100 + i), bytes, a.get());
      device_->fill(data, static_cast<uint8_t>(round), bytes, a.get());
      device_->record(event, a.get());
      device_->wait(event, b.get());
      device_->copy(copy, data, bytes, b.get());
      device_->record(event, b.get());
      device_->wait(event, a.get());
      device_->synchronize(b.get());
      EXPECT_TRUE(all(static_cast<std::byte*>(copy) + bytes - kMiB, kMiB, static_cast<uint8_t>(round)));
    }
    device_->synchronize(a.get());
    device_->destroy_event(event);
    device_->deallocate(data);
    device_->deallocate(copy);
  }

  // Waiting for the device would end another thread's capture: what was given back since the last wait stays where it is.
  void allocate_while_a_thread_captures() {
    const OwnedStream stream(device_);
    void* const freed = device_->allocate(100);
    void* const used = device_->allocate(4096);
    device_->fill(used, 0, 4096, {});
    device_->synchronize({});
    device_->deallocate(freed);
    void* meanwhile = nullptr;
    const Graph graph = device_->capture(stream.get(), [&] {
      device_->fill(used, 7, 4096, stream.get());
      std::thread([&] { meanwhile = device_->allocate(100); }).join();
    });
    EXPECT_NE(meanwhile, nullptr);
    EXPECT_NE(meanwhile, freed);
    device_->launch(graph, stream.get());
    device_->synchronize(stream.get());
    EXPECT_TRUE(all(used, 4096, 7));
    void* const later = device_->allocate(100);
    EXPECT_EQ(later, freed);
    device_->destroy_graph(graph);
    for (void* data : {meanwhile, later, used}) device_->deallocate(data);
  }
};

}  // namespace strata::test
