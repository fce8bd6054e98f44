// Reductions over a warp or over groups of neighbouring lanes: every lane of the warp takes part and gets its group's result. And prefix
// sums.
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

// NaN is ignored, as in strata::amax.
template <int kLanes = kWarpSize>
__device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}

// The sum over the lanes up to and including this one, for a warp whose first kLanes lanes count.
template <int kLanes = kWarpSize, class T>
__device__ __forceinline__ T lanes_up_to(T v) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    const T other = __shfl_up_sync(kAllLanes, v, step);
    if (lane >= step) v += other;
  }
  return v;
}

}  // namespace strata::cuda
