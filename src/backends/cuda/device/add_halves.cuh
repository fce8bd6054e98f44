// Weighted sums of fp16, for combining splits.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace strata::cuda {

// sum += weight * eight fp16.
__device__ __forceinline__ void add_weighted(float (&sum)[8], float weight, uint4 halves) {
  const uint32_t pairs[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
    sum[2 * i] = fmaf(weight, v.x, sum[2 * i]), sum[2 * i + 1] = fmaf(weight, v.y, sum[2 * i + 1]);
  }
}

}  // namespace strata::cuda
