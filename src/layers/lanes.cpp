#include "core/check.h"
#include "strata/attention.h"

namespace strata {

Lanes::Lanes(std::shared_ptr<Device> device) : device_(std::move(device)) {
  require(device_ != nullptr, "lanes: device is required, is null");
  for (Lane& lane : lanes_) lane = {device_->create_stream(), device_->create_event(), device_->create_event()};
  concurrent_ = lanes_.front().stream.handle != nullptr;
}

Lanes::~Lanes() {
  for (const Lane& lane : lanes_) {
    device_->destroy_event(lane.done);
    device_->destroy_event(lane.forked);
    device_->destroy_stream(lane.stream);
  }
}

Stream Lanes::fork(size_t i, Stream stream) {
  device_->record(lanes_[i].forked, stream);
  device_->wait(lanes_[i].forked, lanes_[i].stream);
  return lanes_[i].stream;
}

void Lanes::join(size_t i, Stream stream) {
  device_->record(lanes_[i].done, lanes_[i].stream);
  device_->wait(lanes_[i].done, stream);
}

}  // namespace strata
