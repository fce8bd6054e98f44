// Reductions over a warp or over groups of neighbouring lanes. Every lane of the warp takes part and gets its group's result.
#pragma once

namespace strata::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

template <int kLanes = kWarpSize>
__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}

// NaN does not count, as in strata::amax.
template <int kLanes = kWarpSize>
__device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}

}  // namespace strata::cuda
