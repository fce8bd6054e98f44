// The host as a device whose memory a check does not read. For the check of a call that has shapes, and stand-ins for addresses: every view
// and cache of the call is on it, and so is the check. Messages call it "cpu".
#pragma once

#include "strata/device_id.h"

namespace strata {

inline constexpr DeviceId kUnreadHost{.kind = DeviceKind::cpu, .index = -1};

// Whether a check may read a view that is on the device.
constexpr bool is_readable(DeviceId device) { return device.kind == DeviceKind::cpu && !(device == kUnreadHost); }

}  // namespace strata
