// Rows that begin anywhere.
#pragma once

#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sparse_prefill {

// 16 bytes of any alignment; zeros when not wanted.
__device__ __forceinline__ void copy_narrow(uint32_t shared, const void* global, bool wanted) {
  uint32_t w[4] = {};
  if (wanted) load_words(static_cast<const uint8_t*>(global), w);
  ptx::st_shared(shared, {w[0], w[1], w[2], w[3]});
}

}  // namespace strata::cuda::sparse_prefill
