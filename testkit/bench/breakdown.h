// Where the time of something composed of ops goes.
#pragma once

#include <memory>
#include <vector>

#include "testkit/harness/recorded_calls.h"
#include "testkit/bench/timing.h"

namespace strata::testkit {

// Seconds of each call at its position in the sequence, with all calls in order on one stream: without the gain from side streams. Where
// the device captures graphs, the time of a call is a difference: all calls up to and including it, minus all calls before it, each
// measured after a run of the whole. Time that overlaps the preceding call does not count. Elsewhere it is the time of the call alone, in a
// run of all.
std::vector<double> measure_calls(const std::vector<RecordedCall>& calls, const std::shared_ptr<Device>& device,
                                  const TimingOptions& options);

}  // namespace strata::testkit
