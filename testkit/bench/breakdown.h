// Where the time of something composed of ops goes.
#pragma once

#include <memory>
#include <vector>

#include "testkit/harness/recorded_calls.h"
#include "testkit/bench/timing.h"

namespace strata::testkit {

// Seconds that each call takes where it stands, all of them in order on one stream: so without what lanes save. Where the device captures
// graphs it is the time of all calls up to and with this one less that of all before it, each behind a run of the whole: what overlaps the
// call in front does not count. Elsewhere it is the time of the call alone, in a run of all.
std::vector<double> measure_calls(const std::vector<RecordedCall>& calls, const std::shared_ptr<Device>& device,
                                  const TimingOptions& options);

}  // namespace strata::testkit
