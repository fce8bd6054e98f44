#include "batch/staged_upload.h"

#include "core/arena.h"

namespace strata {

StagedUpload::StagedUpload(std::shared_ptr<Device> device, size_t bytes)
    : device_(std::move(device)), storage_(bytes + Arena::kAlignment), data_(storage_.data()), bytes_(bytes) {
  size_t space = storage_.size();
  std::align(Arena::kAlignment, bytes, data_, space);
  copies_ = device_->create_stream();
  before_ = device_->create_event();
  after_ = device_->create_event();
}

StagedUpload::~StagedUpload() {
  try {
    device_->synchronize(copies_);
  } catch (const Error&) {
    // A device that failed copies nothing any more.
  }
  device_->destroy_event(after_);
  device_->destroy_event(before_);
  device_->destroy_stream(copies_);
}

void StagedUpload::wait() { device_->synchronize(copies_); }

void StagedUpload::send(void* device_dst, size_t bytes, Stream stream) {
  device_->record(before_, stream);
  device_->wait(before_, copies_);
  device_->copy_from_host(device_dst, data_, bytes, copies_);
  device_->record(after_, copies_);
  device_->wait(after_, stream);
}

}  // namespace strata
