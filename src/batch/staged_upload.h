// Host staging memory, pinned where the device knows that, and its way to the device. The device copy is asynchronous, so staging memory
// is rewritten only when the copy before is done; that waits on a stream of its own, not on the caller's, so that the host can prepare a
// step while the last one runs.
#pragma once

#include <cstddef>
#include <memory>

#include "strata/owned_stream.h"
#include "strata/op.h"

namespace strata {

class StagedUpload {
 public:
  StagedUpload(std::shared_ptr<Device> device, int64_t bytes);

  // Aligned like device memory, zero at first; contents stay between steps.
  Workspace memory() const { return {data_.get(), bytes_}; }
  // Returns when the host may write memory() again.
  void wait();
  // The first `bytes` bytes to `device_dst`: after the work that `stream` has now, before the work it is given next.
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
  OwnedStream copies_;  // last: its work is done before what it uses goes away
};

}  // namespace strata
