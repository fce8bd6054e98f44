// Times a call, and the reference for comparison.
#pragma once

#include <memory>

#include "testkit/harness/case.h"

namespace strata::testkit {

struct TimingOptions {
  double min_time = 0.3;  // seconds of measuring, after a warm-up call
  int min_samples = 5;    // fewer when one call alone takes longer than min_time
};

struct Timing {
  double median = 0;  // seconds a call
  double minimum = 0;
  int samples = 0;
  int64_t calls_per_sample = 1;
  bool graph = false;  // a sample was one launch of a captured graph
};

// Copies of the inputs are used round-robin. A sample holds as many calls as make the clock's and a synchronisation's cost disappear; where
// the device captures graphs it is one launch of all of them, otherwise the calls one by one.
Timing measure(const Work& work, const std::shared_ptr<Device>& device, const TimingOptions& options);

// The scalar reference on this machine's CPU: run once, on the share of the case's tokens that takes about `budget` seconds, and scaled by
// the work.
struct ReferenceTiming {
  double seconds = 0;  // of the whole case; 0: the case has no reference
  double share = 1.0;  // of the work that was really run
};
ReferenceTiming time_reference(const AnyCase& c, const OpSet& ops, double bytes, double flops, uint64_t seed, double budget);

}  // namespace strata::testkit
