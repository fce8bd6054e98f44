// What owns streams, events and host memory gives all of it back, also where a device fails between them.
#include "strata/owned_stream.h"

#include <gtest/gtest.h>

#include "batch/staged_upload.h"
#include "core/host_device.h"
#include "strata/attention.h"

namespace strata {
namespace {

// Counts what it made and did not get back; fails after a given number.
class CountingDevice final : public HostDevice {
 public:
  explicit CountingDevice(int makings) : makings_(makings) {}
  Stream create_stream() override { return {make()}; }
  void destroy_stream(Stream) noexcept override { --alive; }
  Event create_event() override { return {make()}; }
  void destroy_event(Event) noexcept override { --alive; }
  void* allocate_host(int64_t bytes) override {
    make();
    return HostDevice::allocate_host(bytes);
  }
  void deallocate_host(void* data) noexcept override {
    if (data != nullptr) --alive;
    HostDevice::deallocate_host(data);
  }

  int alive = 0;

 private:
  void* make() {
    if (makings_-- == 0) throw Error(ErrorCode::device_failure, "no more");
    ++alive;
    return this;
  }
  int makings_;
};

// How many things make(device) makes. Whichever of them fails first, those before it are given back.
template <class F>
int makings(F&& make) {
  for (int n = 0; n < 100; ++n) {
    const auto device = std::make_shared<CountingDevice>(n);
    bool made = true;
    try {
      make(device);
    } catch (const Error&) {
      made = false;
    }
    EXPECT_EQ(device->alive, 0) << "after " << n;
    EXPECT_EQ(device.use_count(), 1) << "after " << n;
    if (made) return n;
  }
  return -1;
}

TEST(OwnedStream, WhatOwnsItGivesBackAllWhereMakingFails) {
  EXPECT_EQ(makings([](const auto& device) { OwnedStream stream(device); }), 1);
  EXPECT_EQ(makings([](const auto& device) { OwnedEvent event(device); }), 1);
  EXPECT_EQ(makings([](const auto& device) { SideStreams streams(device); }), SideStreams::kStreams + SideStreams::kEvents);
  EXPECT_EQ(makings([](const auto& device) { StagedUpload upload(device, 64); }), 4);
}

}  // namespace
}  // namespace strata
