// A device that counts what a forward pass must not do, and that runs out of memory on request.
#pragma once

#include <functional>
#include <memory>

#include "strata/device.h"

namespace strata::test {

class CountingDevice final : public Device {
 public:
  explicit CountingDevice(std::shared_ptr<Device> device) : Device(device->id(), device->config()), device_(std::move(device)) {}

  int allocations = 0;
  int synchronisations = 0;
  int copies_to_host = 0;
  int copies_from_host = 0;
  int streams = 0;
  int fail_at = 0;  // the allocation that fails, from 1 on; 0: none
  int live = 0;     // allocations that were not given back
  int forbidden() const { return allocations + synchronisations + copies_to_host + copies_from_host + streams; }

  std::string description() const override { return device_->description(); }
  DeviceProperties properties() const override { return device_->properties(); }
  void* allocate(int64_t bytes) override {
    count_allocation();
    void* const data = device_->allocate(bytes);
    live += data != nullptr;
    return data;
  }
  void deallocate(void* data) noexcept override {
    live -= data != nullptr;
    device_->deallocate(data);
  }
  void* allocate_host(int64_t bytes) override {
    count_allocation();
    void* const data = device_->allocate_host(bytes);
    live += data != nullptr;
    return data;
  }
  void deallocate_host(void* data) noexcept override {
    live -= data != nullptr;
    device_->deallocate_host(data);
  }
  void copy_from_host(void* dst, const void* src, int64_t bytes, Stream stream) override {
    ++copies_from_host;
    device_->copy_from_host(dst, src, bytes, stream);
  }
  void copy_to_host(void* dst, const void* src, int64_t bytes, Stream stream) override {
    ++copies_to_host;
    device_->copy_to_host(dst, src, bytes, stream);
  }
  void copy(void* dst, const void* src, int64_t bytes, Stream stream) override { device_->copy(dst, src, bytes, stream); }
  void fill(void* dst, uint8_t value, int64_t bytes, Stream stream) override { device_->fill(dst, value, bytes, stream); }
  Stream create_stream() override {
    ++streams;
    return device_->create_stream();
  }
  void destroy_stream(Stream stream) noexcept override { device_->destroy_stream(stream); }
  Event create_event() override {
    ++streams;
    return device_->create_event();
  }
  void destroy_event(Event event) noexcept override { device_->destroy_event(event); }
  void record(Event event, Stream stream) override { device_->record(event, stream); }
  void wait(Event event, Stream stream) override { device_->wait(event, stream); }
  void synchronize(Stream stream) override {
    ++synchronisations;
    device_->synchronize(stream);
  }
  double elapsed_seconds(Stream stream, const std::function<void()>& work) override { return device_->elapsed_seconds(stream, work); }
  Graph capture(Stream stream, const std::function<void()>& work) override { return device_->capture(stream, work); }
  void launch(Graph graph, Stream stream) override { device_->launch(graph, stream); }
  void destroy_graph(Graph graph) noexcept override { device_->destroy_graph(graph); }

 private:
  // The device's own error, of an allocation that no device has room for.
  void count_allocation() {
    if (++allocations == fail_at) static_cast<void>(device_->allocate(int64_t{1} << 50));
  }

  std::shared_ptr<Device> device_;
};

}  // namespace strata::test
