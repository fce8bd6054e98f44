// The scales of a tile's codes in shared memory.
#pragma once

#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/sm90/linear/tile_chunk.cuh"
#include "backends/cuda/sm90/linear_mixed/config.h"

namespace strata::cuda::sm90 {

// Asks for those of a CTA's part of k, [kParts][max_chunk] from the shared address `to` on, by its first kThreads threads.
template <int kParts, int kThreads>
__device__ __forceinline__ void load_weight_scales(const MixedArgs& a, int first_row, const TileChunk& chunk, uint32_t to) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int i = thread; i < kParts * chunk.count && thread < kThreads; i += kThreads) {
    const int part = i / chunk.count, block = i - part * chunk.count;
    ptx::cp_async_4(to + (part * a.max_chunk + block) * 4,
                    a.w_scale + int64_t{first_row / kMixedRows + part} * a.num_blocks + chunk.first + block);
  }
}

}  // namespace strata::cuda::sm90
