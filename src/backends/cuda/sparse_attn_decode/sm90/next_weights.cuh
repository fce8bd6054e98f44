// The weights that the kernel behind attention reads, on their way to L2 while attention multiplies and the memory idles. By the warps that
// load rows, a part with each tile: all at once rows would wait behind them.
#pragma once

#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/config.h"

namespace strata::cuda::sparse_decode {

// Pieces of next_bytes bytes, next_apart from the next: `next_lanes` lanes of each loading warp have one each, `next_times` times a block.
template <int kWarps>
__device__ __forceinline__ void bring_next_near(const DecodeArgs& a, uint32_t block, int32_t time, int warp) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane >= a.next_lanes || time >= a.next_times) return;
  const uint32_t piece = ((block * a.next_times + time) * kWarps + warp) * a.next_lanes + lane;
  ptx::bulk_prefetch_l2(a.next + piece * a.next_apart, static_cast<uint32_t>(a.next_bytes));
}
template <int kWarps>
__device__ __forceinline__ void bring_next_near(const DecodeArgs& a, int32_t time, int warp) {
  bring_next_near<kWarps>(a, blockIdx.y * gridDim.x + blockIdx.x, time, warp);
}

}  // namespace strata::cuda::sparse_decode
