// What the machine can do at best, measured in the run that reports against it.
#pragma once

#include <memory>
#include <string>

#include "testkit/harness/case.h"

namespace strata::testkit {

struct Ceilings {
  double flops = 0;          // per second; 0: no product could be measured
  std::string flops_source;  // what was measured
  double bandwidth = 0;      // bytes per second
  std::string bandwidth_source;
  double empty_launch = 0;  // seconds of a kernel that does nothing, one of many in a row; 0: the device launches none, or it is not known
  // Takes over what the other measurement found faster.
  void improve(const Ceilings& other);
  // The least time that so much work can take.
  double floor_seconds(double bytes, double work_flops) const;
};

// Matrix product: the library's bf16 linear on random values, 4096^3 on a CPU (oneDNN's where that is faster than ours, of fp32 where the
// CPU has no bf16 products) and 8192^3 elsewhere, packed where there is a packing; 256^3 on devices on which that takes minutes.
// Memory: reading a buffer larger than the last-level cache, on a CPU with every thread; on other devices a copy within the device, bytes
// read and bytes written, when that is faster.
Ceilings measure_ceilings(const OpSet& ops, const std::shared_ptr<Device>& device);

// Bytes that no cache holds: what benchmark inputs rotate through.
size_t rotate_bytes(const Device& device);

}  // namespace strata::testkit
