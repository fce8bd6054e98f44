#include "batch/staged_upload.h"

#include <cstring>

#include "core/planning_device.h"

namespace strata {

StagedUpload::StagedUpload(std::shared_ptr<Device> device, int64_t bytes)
    : device_(std::move(device)),
      bytes_(bytes),
      data_(device_->allocate_host(bytes), {device_.get()}),
      before_(device_),
      after_(device_),
      copies_(device_) {
  if (bytes > 0 && !is_planning(*device_)) std::memset(data_.get(), 0, bytes);
}

void StagedUpload::wait() { device_->synchronize(copies_.get()); }

void StagedUpload::send(void* device_dst, int64_t bytes, Stream stream) {
  device_->record(before_.get(), stream);
  device_->wait(before_.get(), copies_.get());
  device_->copy_from_host(device_dst, data_.get(), bytes, copies_.get());
  device_->record(after_.get(), copies_.get());
  device_->wait(after_.get(), stream);
}

}  // namespace strata
