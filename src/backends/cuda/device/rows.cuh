// Kernel arguments in place of tensor views, for elementwise kernels.
#pragma once

#include "strata/tensor.h"

namespace strata::cuda {

// The rows of a view of rank 1 to 3 with contiguous rows.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride0 = 0;
  int64_t stride1 = 0;

  Rows() = default;
  explicit Rows(const TensorView& v) : data(static_cast<T*>(v.data)), stride0(v.stride[0]), stride1(v.stride[1]) {}
  __device__ T* row(int64_t i) const { return data + i * stride0; }
  __device__ T* row(int64_t i, int64_t j) const { return data + i * stride0 + j * stride1; }
};

inline bool begins_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
// True when every row begins at a multiple of 16 bytes.
inline bool rows_aligned(const TensorView& v) {
  if (!begins_aligned(v.data)) return false;
  for (int i = 0; i + 1 < v.rank; ++i) {
    if (v.shape[i] > 1 && v.stride[i] * static_cast<int64_t>(size_of(v.dtype)) % 16 != 0) return false;
  }
  return true;
}
// Also checks a stride that only one row uses: tensor maps need aligned strides.
inline bool strides_aligned(const TensorView& v) {
  for (int i = 0; i + 1 < v.rank; ++i) {
    if (v.stride[i] <= 0 || v.stride[i] * static_cast<int64_t>(size_of(v.dtype)) % 16 != 0) return false;
  }
  return true;
}

}  // namespace strata::cuda
