#include "core/check.h"
#include "strata/attention.h"

namespace strata {
namespace {

std::shared_ptr<Device> required(std::shared_ptr<Device> device) {
  require(device != nullptr, "lanes: device is required, is null");
  return device;
}

}  // namespace

Lanes::Lanes(std::shared_ptr<Device> device) : device_(required(std::move(device))), lanes_{Lane(device_), Lane(device_)} {}

Stream Lanes::fork(int64_t i, Stream stream) {
  const Lane& lane = lanes_[static_cast<size_t>(i)];
  device_->record(lane.forked.get(), stream);
  device_->wait(lane.forked.get(), lane.stream.get());
  return lane.stream.get();
}

void Lanes::join(int64_t i, Stream stream) {
  const Lane& lane = lanes_[static_cast<size_t>(i)];
  device_->record(lane.done.get(), lane.stream.get());
  device_->wait(lane.done.get(), stream);
}

}  // namespace strata
