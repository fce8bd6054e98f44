// Copies of rows of any alignment.
#pragma once

#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sparse_prefill {

// Copies 16 bytes of any alignment; zeros if not valid.
__device__ __forceinline__ void copy_narrow(uint32_t shared, const void* global, bool valid) {
  uint32_t w[4] = {};
  if (valid) load_words(static_cast<const uint8_t*>(global), w);
  ptx::st_shared(shared, {w[0], w[1], w[2], w[3]});
}

}  // namespace strata::cuda::sparse_prefill
