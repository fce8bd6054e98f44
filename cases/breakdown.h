// Where the time of something composed of ops goes.
#pragma once

#include <memory>
#include <vector>

#include "recorded_calls.h"
#include "timing.h"

namespace strata::cases {

// Seconds that each call takes where it stands, all of them in order on one stream: so without what lanes save. Where the device captures
// graphs it is the difference of two graphs' times, all the calls and then those up to and with this one, and all the calls and then
// those before it: caches are as the whole leaves them, the start of the next kernel counts where it overlaps the end of this one.
// Elsewhere it is the time of the call alone, in a run of all.
std::vector<double> measure_calls(const std::vector<RecordedCall>& calls, const std::shared_ptr<Device>& device,
                                  const TimingOptions& options);

}  // namespace strata::cases
