// The argument of the kernels of merge_attn_states.clcpp, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/divisor.h"

namespace strata::opencl {

inline constexpr int kMergeItems = 128;
// Values of a part that an item has at once, in accesses of 16 bytes. Rows that are not aligned have one value an access instead.
inline constexpr int kMergeValues = 16;

// 2^log2_lanes items of a group share a row, which is a token's head.
struct MergeCall {
  uint64_t o, lse, out;
  uint64_t sink;     // 0: none
  uint64_t lse_out;  // 0: not wanted
  int64_t o_stride[3], lse_stride[3], out_stride[2], lse_out_stride[2];
  int64_t rows;
  float empty_lse;
  int32_t parts, dim, log2_lanes;
  int32_t is_f32;  // of out
  Divisor heads;
};

}  // namespace strata::opencl
