// The argument of the kernels of norm.clcpp, for host and device code.
#pragma once

#include <cstdint>

namespace strata::opencl {

// A group has a row: runs of 8 consecutive values, each of an item.
inline constexpr int kNormItems = 64;

// Of bf16 rows x: y = bf16 rows, or e4m3 rows with a scale for each block of 128.
struct NormRows {
  uint64_t x, weight, y, scale;
  int64_t x_stride, y_stride, scale_stride;  // elements
  int32_t columns;
  int32_t is_aligned;  // rows of x and y and the weight begin at multiples of 16 and, of e4m3, 8 bytes
  int32_t is_fp8, is_ue8m0;
};

// Rows of q, then of kv, by the second number of the group.
struct NormCall {
  NormRows q, kv;
  float eps;
  int32_t first;  // of the two: 1 where q is absent
};

}  // namespace strata::opencl
