// Alignment checks for memory that kernels access in units larger than an element.
#pragma once

#include "backends/opencl/runtime/opencl_device.h"

namespace strata::opencl {

// Whether every row of the view begins at a multiple of `bytes`.
inline bool rows_begin_at(const TensorView& v, int64_t bytes) {
  if (address(v) % static_cast<uint64_t>(bytes) != 0) return false;
  for (int i = 0; i + 1 < v.rank; ++i) {
    if (v.shape[i] > 1 && v.stride[i] * static_cast<int64_t>(size_of(v.dtype)) % bytes != 0) return false;
  }
  return true;
}

// Whether every page of the cache does.
inline bool pages_begin_at(const PagedCache& cache, int64_t bytes) {
  return address(cache.data) % static_cast<uint64_t>(bytes) == 0 && cache.page_stride % bytes == 0;
}

}  // namespace strata::opencl
