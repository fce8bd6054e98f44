// Units of work that are known to single threads of a CTA, in one common numbering: how CTAs share work that only the device can count.
#pragma once

#include <cstdint>

#include "backends/cuda/device/warp.cuh"

namespace strata::cuda {

struct UnitRange {
  int32_t first, end;  // of this thread's
  int32_t all;         // of the block's threads

  __device__ __forceinline__ bool has(int32_t unit) const { return unit >= first && unit < end; }
};

// By a CTA of kWarps warps, which synchronise in here. of_warps must not change until they synchronise again.
template <int kWarps>
__device__ __forceinline__ UnitRange number_units(int32_t units, int32_t (&of_warps)[kWarps]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int32_t up_to = lanes_up_to(units);
  if (lane == kWarpSize - 1) of_warps[warp] = up_to;
  __syncthreads();
  const int32_t of_warp = lane < kWarps ? of_warps[lane] : 0;
  const int32_t end = __reduce_add_sync(kAllLanes, lane < warp ? of_warp : 0) + up_to;
  return {end - units, end, __reduce_add_sync(kAllLanes, of_warp)};
}

}  // namespace strata::cuda
