// The argument of the kernels of merge_attn_states.clcpp, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/divisor.h"

namespace strata::opencl {

inline constexpr int kMergeItems = 128;
// Values of a split per item at a time, in accesses of 16 bytes. Unaligned rows are accessed value by value instead.
inline constexpr int kMergeValues = 16;

// 2^log2_row_items items of a group share a row, one head of a token.
struct MergeCall {
  uint64_t o, lse, out;
  uint64_t sink;     // 0: none
  uint64_t lse_out;  // 0: not written
  int64_t o_stride[3], lse_stride[3], out_stride[2], lse_out_stride[2];
  int64_t rows;
  float empty_lse;
  int32_t splits, dim, log2_row_items;
  int32_t is_f32;  // out is f32, otherwise bf16
  Divisor heads;
};

}  // namespace strata::opencl
