// The product of a block of 128 channels on the tensor cores: 64 features, the M of wgmma, and kTokens tokens, its N.
//
// e4m3: the tensor core sums 128 products, scaled and added in fp32 (V4 5.2).
#pragma once

#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/linear/sm90/config.h"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/wgmma.cuh"

namespace strata::cuda::sm90 {

// Adds to a warpgroup's sums. features and tokens: rows in shared memory, valid, like the feature's scale, when `full` completes its phase
// of this parity. Every warp arrives on `empty` when it has read them. x_scales: of the tokens from 2 (lane % 4) on.
template <int kTokens>
__device__ __forceinline__ void add_block(float (&sums)[kTokens / 2], uint32_t features, uint32_t tokens, const float* w_scale,
                                          const float* x_scales, uint32_t full, uint32_t parity, uint32_t empty) {
  const uint64_t w_rows = ptx::wgmma_descriptor(features), x_rows = ptx::wgmma_descriptor(tokens);
  float products[kTokens / 2];
  ptx::mbarrier_wait(full, parity);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kLinearBlock / 32; ++i) ptx::wgmma_e4m3(products, w_rows + 2 * i, x_rows + 2 * i, i > 0);
  ptx::wgmma_commit();
  // While the tensor cores multiply.
  float2 scales[kTokens / 8];
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const float2 x_scale = *reinterpret_cast<const float2*>(x_scales + 8 * j);
    scales[j] = make_float2(*w_scale * x_scale.x, *w_scale * x_scale.y);
  }
  ptx::wgmma_wait<0>();
  arrive_warp(empty, threadIdx.x % 32);  // every lane has read the scale
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[4 * j + i] += (i % 2 == 0 ? scales[j].x : scales[j].y) * products[4 * j + i];
  }
}

}  // namespace strata::cuda::sm90
