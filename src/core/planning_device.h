// A device for planning: the properties of another device, and device memory that holds nothing.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "strata/device.h"

namespace strata {

// Layers and batches made on it select the same implementations and sizes as on the other device. Device memory reads as zeros and
// cannot be written; copies and fills do nothing. Host memory takes pages where it is written. Streams and events are the other device's.
class PlanningDevice final : public Device {
 public:
  explicit PlanningDevice(std::shared_ptr<Device> device) : Device(device->id(), device->config()), device_(std::move(device)) {}

  std::string description() const override { return device_->description(); }
  DeviceProperties properties() const override { return device_->properties(); }

  // Throws out_of_memory when the address space is exhausted.
  void* allocate(int64_t bytes) override;
  void deallocate(void* data) noexcept override;
  void* allocate_host(int64_t bytes) override;
  void deallocate_host(void* data) noexcept override { deallocate(data); }

  void copy_from_host(void*, const void*, int64_t, Stream) override {}
  void copy_to_host(void*, const void*, int64_t, Stream) override {}
  void copy(void*, const void*, int64_t, Stream) override {}
  void fill(void*, uint8_t, int64_t, Stream) override {}

  Stream create_stream() override { return device_->create_stream(); }
  void destroy_stream(Stream stream) noexcept override { device_->destroy_stream(stream); }
  Event create_event() override { return device_->create_event(); }
  void destroy_event(Event event) noexcept override { device_->destroy_event(event); }
  void record(Event event, Stream stream) override { device_->record(event, stream); }
  void wait(Event event, Stream stream) override { device_->wait(event, stream); }
  void synchronize(Stream stream) override { device_->synchronize(stream); }

 private:
  void* map(int64_t bytes, int access);

  std::shared_ptr<Device> device_;
  std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;
};

// Whether filling the device's memory can be skipped.
inline bool is_planning(const Device& device) { return dynamic_cast<const PlanningDevice*>(&device) != nullptr; }

}  // namespace strata
