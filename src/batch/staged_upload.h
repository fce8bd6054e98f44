// Host staging memory, pinned where the device supports that, and its copy to the device. The device copy is asynchronous, so staging
// memory is rewritten only when the previous copy has finished. The copy has its own stream, so the host can prepare a step while the
// caller's stream runs the last one.
#pragma once

#include <cstddef>
#include <memory>

#include "strata/owned_stream.h"
#include "strata/op.h"

namespace strata {

class StagedUpload {
 public:
  StagedUpload(std::shared_ptr<Device> device, int64_t bytes);

  // Aligned like device memory, initially zero; contents are kept between steps.
  Workspace memory() const { return {data_.get(), bytes_}; }
  // Returns when the host may write memory() again.
  void wait();
  // Copies the first `bytes` bytes to `device_dst`, after the present work of `stream` and before its later work.
  void send(void* device_dst, int64_t bytes, Stream stream);

 private:
  struct Deallocate {
    Device* device;
    void operator()(void* data) const noexcept { device->deallocate_host(data); }
  };
  std::shared_ptr<Device> device_;
  int64_t bytes_;
  std::unique_ptr<void, Deallocate> data_;
  OwnedEvent before_, after_;
  OwnedStream copies_;  // last member: its work finishes before what it uses is destroyed
};

}  // namespace strata
