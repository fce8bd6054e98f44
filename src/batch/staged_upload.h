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
  StagedUpload(std::shared_ptr<Device> device, size_t bytes);
  ~StagedUpload();
  StagedUpload(const StagedUpload&) = delete;
  StagedUpload& operator=(const StagedUpload&) = delete;

  // Aligned like device memory, zero at first; contents stay between steps.
  Workspace memory() const { return {data_, bytes_}; }
  // Returns when the host may write memory() again.
  void wait();
  // The first `bytes` bytes to `device_dst`: after the work that `stream` has now, before the work it is given next.
  void send(void* device_dst, size_t bytes, Stream stream);

 private:
  std::shared_ptr<Device> device_;
  OwnedStream copies_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
  Event before_{};
  Event after_{};
};

}  // namespace strata
