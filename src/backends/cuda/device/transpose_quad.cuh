// Four lanes exchange words.
#pragma once

#include <cstdint>

namespace strata::cuda {

// Of four lanes, lane p has words w[0 .. 3] of its own and gets word p of each.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
  const bool odd = (threadIdx.x & 1u) != 0, high = (threadIdx.x & 2u) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
    w[i] = odd ? other : w[i], w[i + 1] = odd ? w[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
    w[i] = high ? other : w[i], w[i + 2] = high ? w[i + 2] : other;
  }
}

}  // namespace strata::cuda
