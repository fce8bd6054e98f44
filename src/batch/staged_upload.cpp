#include "batch/staged_upload.h"

#include <cstring>

namespace strata {

StagedUpload::StagedUpload(std::shared_ptr<Device> device, size_t bytes)
    : device_(std::move(device)), copies_(device_), bytes_(bytes), data_(device_->allocate_host(bytes)) {
  if (bytes > 0) std::memset(data_, 0, bytes);
  before_ = device_->create_event();
  after_ = device_->create_event();
}

StagedUpload::~StagedUpload() {
  copies_.finish();
  device_->destroy_event(after_);
  device_->destroy_event(before_);
  device_->deallocate_host(data_);
}

void StagedUpload::wait() { device_->synchronize(copies_.get()); }

void StagedUpload::send(void* device_dst, size_t bytes, Stream stream) {
  device_->record(before_, stream);
  device_->wait(before_, copies_.get());
  device_->copy_from_host(device_dst, data_, bytes, copies_.get());
  device_->record(after_, copies_.get());
  device_->wait(after_, stream);
}

}  // namespace strata
