// Devices whose memory is the host's: the CPU, and devices of tests.
#pragma once

#include <utility>

#include "strata/device.h"

namespace strata {

// Every call finishes before it returns, so there is nothing to queue or to wait for: streams and events are null.
class HostDevice : public Device {
 public:
  explicit HostDevice(DeviceId id = {}, Config config = {}) : Device(id, std::move(config)) {}
  std::string description() const override { return "host memory"; }

  void* allocate(int64_t bytes) override { return allocate_host(bytes); }
  void deallocate(void* data) noexcept override { deallocate_host(data); }

  void copy_from_host(void* dst, const void* src, int64_t bytes, Stream) override;
  void copy_to_host(void* dst, const void* src, int64_t bytes, Stream) override;
  void copy(void* dst, const void* src, int64_t bytes, Stream) override;
  void fill(void* dst, uint8_t value, int64_t bytes, Stream) override;

  Stream create_stream() override { return {}; }
  void destroy_stream(Stream) noexcept override {}
  Event create_event() override { return {}; }
  void destroy_event(Event) noexcept override {}
  void record(Event, Stream) override {}
  void wait(Event, Stream) override {}
  void synchronize(Stream) override {}
};

// Number of host threads that work for a device: Config::cpu_threads, or one per core that the process may use.
int host_threads(const Device& device);

}  // namespace strata
