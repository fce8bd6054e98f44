#include "strata/side_streams.h"

#include "core/check.h"

namespace strata {

SideStreams::SideStreams(const std::shared_ptr<Device>& device) {
  require(device != nullptr, "side streams: device is required, is null");
  for (int64_t i = 0; i < kEvents; ++i) events_.emplace_back(device);
  for (int64_t i = 0; i < kStreams; ++i) streams_.emplace_back(device);
}

}  // namespace strata
