// The scales of a token product's tokens, in shared memory.
#pragma once

#include "backends/cuda/linear/sm90/token_product.h"
#include "backends/cuda/ptx/cp_async.cuh"

namespace strata::cuda::sm90 {

// Loads the scales of `count` blocks of a group from `first` on: [count][kTokens], 0 for tokens that do not exist. By the first kThreads
// threads, each of which commits and waits for its own copies.
template <int kTokens, int kThreads>
__device__ __forceinline__ void load_token_scales(const TokenProductArgs& a, int group, int first, int count, uint32_t shared) {
  const float* const of_group = a.x_scale + group * a.x_scale_group;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count * kTokens; i += kThreads) {
    const int block = i / kTokens, token = i % kTokens;
    const bool exists = token < a.num_tokens;
    ptx::cp_async_4_or_zero(shared + i * 4, of_group + (exists ? token * a.x_scale_token + (first + block) * a.x_scale_block : 0), exists);
  }
}

}  // namespace strata::cuda::sm90
