// H_n x / sqrt(n) of a vector in the registers of neighbouring lanes: the fp32 operations of formats/hadamard.h in their order, hence
// the same bits.
#pragma once

#include "backends/cuda/device/warp.cuh"

namespace strata::cuda {

// 1 / sqrt(n), n a power of two.
__host__ __device__ constexpr float hadamard_scale(int n) {
  float scale = 1.0f;
  for (; n >= 4; n /= 4) scale *= 0.5f;
  return n == 2 ? scale * static_cast<float>(0.70710678118654752440) : scale;
}

// H_n x, not scaled. kLanes lanes, from a multiple of kLanes on, hold kValues consecutive values each. The whole warp takes part.
template <int kLanes, int kValues>
__device__ __forceinline__ void butterfly_lanes(float (&x)[kValues], int lane) {
#pragma unroll
  for (int half = 1; half < kValues; half *= 2) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
#pragma unroll
  for (int half = 1; half < kLanes; half *= 2) {
    const bool second = (lane & half) != 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, x[i], half);
      x[i] = second ? other - x[i] : x[i] + other;
    }
  }
}

template <int kLanes, int kValues>
__device__ __forceinline__ void hadamard_lanes(float (&x)[kValues], int lane) {
  butterfly_lanes<kLanes>(x, lane);
  constexpr float kScale = hadamard_scale(kLanes * kValues);
#pragma unroll
  for (int i = 0; i < kValues; ++i) x[i] *= kScale;
}

}  // namespace strata::cuda
