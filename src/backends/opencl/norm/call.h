// The argument of the kernels of norm.clcpp, for host and device code.
#pragma once

#include <cstdint>

namespace strata::opencl {

// One group per row, one item per run of 8 consecutive values.
inline constexpr int kNormItems = 64;

// x has bf16 rows. y has bf16 rows, or e4m3 rows with one scale per 128 values.
struct NormRows {
  uint64_t x, weight, y, scale;
  int64_t x_stride, y_stride, scale_stride;  // in elements
  int32_t columns;
  int32_t is_aligned;  // rows of x and y and the weight begin at multiples of 16 bytes, e4m3 rows at multiples of 8
  int32_t is_fp8, is_ue8m0;
};

// The group's second number selects q or kv.
struct NormCall {
  NormRows q, kv;
  float eps;
  int32_t first;  // the first of them: 1 if q is absent
};

}  // namespace strata::opencl
