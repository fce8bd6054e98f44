// Prefetches the next kernel's weights to L2 while attention multiplies and memory is partly idle. The warps that load rows issue a share
// with each tile: all at once would delay the rows.
#pragma once

#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/config.h"

namespace strata::cuda::sparse_decode {

// Ranges of next_bytes bytes at distances of next_stride. `next_lanes` lanes of each loading warp prefetch one range each, `next_times`
// times per CTA.
template <int kWarps>
__device__ __forceinline__ void prefetch_next_weights(const DecodeArgs& a, uint32_t block, int32_t time, int warp) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane >= a.next_lanes || time >= a.next_times) return;
  const uint32_t range = ((block * a.next_times + time) * kWarps + warp) * a.next_lanes + lane;
  ptx::bulk_prefetch_l2(a.next + range * a.next_stride, static_cast<uint32_t>(a.next_bytes));
}
template <int kWarps>
__device__ __forceinline__ void prefetch_next_weights(const DecodeArgs& a, int32_t time, int warp) {
  prefetch_next_weights<kWarps>(a, blockIdx.y * gridDim.x + blockIdx.x, time, warp);
}

}  // namespace strata::cuda::sparse_decode
