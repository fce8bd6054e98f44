// Where the time of a layer goes: one line an op call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "testkit/bench/breakdown.h"
#include "testkit/harness/case.h"
#include "common.h"

namespace strata::cli {

struct CallTime {
  testkit::RecordedCall call;
  double seconds = 0;
};
using Breakdown = std::vector<CallTime>;

Breakdown break_down(const testkit::Work& work, const std::shared_ptr<Device>& device, const testkit::TimingOptions& options);
// `seconds`: time of the whole, in which side streams run concurrently with the main stream.
void print_breakdown(const std::string& name, double seconds, const Breakdown& breakdown);
Json breakdown_json(const Breakdown& breakdown);

}  // namespace strata::cli
