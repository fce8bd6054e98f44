// The arguments of the kernels of rope.clcpp, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/divisor.h"

namespace strata::opencl {

inline constexpr int kRopeItems = 256, kRopeQuantItems = 128;
inline constexpr int kRopeRuns = 2;    // per item
inline constexpr int kRopeValues = 8;  // per run

// The runs of [T, H] vectors. The first `nope` values of a vector stay unchanged; the others are rotary.
struct RopeRuns {
  int64_t total;
  int32_t nope, rotary;
  int32_t plain_runs;  // runs per vector before the rotary ones; 0 if those values need no copy
  Divisor of_vector, of_token;
};

// Runs have kRopeValues values, in inverse_rope_pairs 2.
struct InverseRopeCall {
  uint64_t o, out, positions, cos_sin;
  int64_t o_stride[2], out_stride[2], table_stride;
  RopeRuns runs;
};

// nope and rotary are even. Runs of kRopeValues cover the whole vector.
struct InverseRopeQuantCall {
  uint64_t o, out, scale, positions, cos_sin;
  int64_t o_stride[2], table_stride;
  RopeRuns runs;
  int32_t is_wide;  // vectors and table rows begin at multiples of 16 bytes, out at a multiple of 8, and rotary values at a run
};

}  // namespace strata::opencl
