// Alignment of rows and pages on a CUDA device: as aligned as their stride, so that strides determine how they can be read.
#pragma once

#include "strata/tensor.h"

namespace strata::ops {

// The largest power of two up to 16 that divides a stride.
constexpr int alignment_of(int64_t bytes) { return static_cast<int>((bytes | 16) & -(bytes | 16)); }

// Alignment in bytes of every row of a tensor whose first row is as aligned.
inline int row_alignment(const TensorView& v) {
  int64_t strides = 0;
  for (int i = 0; i + 1 < v.rank; ++i) strides |= v.stride[i];
  // The low bits are enough, and their product does not overflow.
  return alignment_of(strides % 16 * static_cast<int64_t>(size_of(v.dtype)));
}

}  // namespace strata::ops
