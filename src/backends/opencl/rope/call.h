// The arguments of the kernels of rope.clcpp, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/divisor.h"

namespace strata::opencl {

inline constexpr int kRopeItems = 256, kRopeQuantItems = 128;
inline constexpr int kRopeRuns = 2;    // of an item
inline constexpr int kRopeValues = 8;  // of a run

// How [T, H] vectors are cut into runs: the first `nope` values as they are, then the rotary ones.
struct RopeRuns {
  int64_t total;
  int32_t nope, rotary;
  int32_t plain_runs;  // of a vector, before the rotary ones; 0 where they stay as they are
  Divisor of_vector, of_token;
};

// Runs of kRopeValues values, or in inverse_rope_pairs of 2.
struct InverseRopeCall {
  uint64_t o, out, positions, cos_sin;
  int64_t o_stride[2], out_stride[2], table_stride;
  RopeRuns runs;
};

// nope and rotary are even, and all values of a vector are in runs of kRopeValues.
struct InverseRopeQuantCall {
  uint64_t o, out, scale, positions, cos_sin;
  int64_t o_stride[2], table_stride;
  RopeRuns runs;
  int32_t is_wide;  // vectors and table rows begin at multiples of 16 bytes, out at one of 8, and rotary values begin with a run
};

}  // namespace strata::opencl
