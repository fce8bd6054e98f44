// A device in host memory whose streams are null: what tests derive from that watch what is asked of a device, or stand in for another.
#pragma once

#include <cstring>
#include <utility>

#include "strata/device.h"

namespace strata::test {

class HostDevice : public Device {
 public:
  explicit HostDevice(DeviceId id = {}, Config config = {}) : Device(id, std::move(config)) {}
  std::string description() const override { return "host memory"; }
  void* allocate(size_t bytes) override { return allocate_host(bytes); }
  void deallocate(void* data) noexcept override { deallocate_host(data); }
  void copy_from_host(void* dst, const void* src, size_t bytes, Stream) override { std::memcpy(dst, src, bytes); }
  void copy_to_host(void* dst, const void* src, size_t bytes, Stream) override { std::memcpy(dst, src, bytes); }
  void copy(void* dst, const void* src, size_t bytes, Stream) override { std::memmove(dst, src, bytes); }
  void fill(void* dst, uint8_t value, size_t bytes, Stream) override { std::memset(dst, value, bytes); }
  Stream create_stream() override { return {}; }
  void destroy_stream(Stream) noexcept override {}
  Event create_event() override { return {}; }
  void destroy_event(Event) noexcept override {}
  void record(Event, Stream) override {}
  void wait(Event, Stream) override {}
  void synchronize(Stream) override {}
};

}  // namespace strata::test
