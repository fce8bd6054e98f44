// A tile's codes, and their scales, on their way to shared memory: those of a CTA's part of k.
#pragma once

#include "backends/cuda/linear/sm90/fill_ring.cuh"
#include "backends/cuda/linear/sm90/mixed/config.h"
#include "backends/cuda/linear/sm90/own_tile.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/tma.cuh"

namespace strata::cuda::sm90 {

// Asks for the scales, [kParts][max_chunk] from the shared address `to` on, by the CTA's first kThreads threads.
template <int kParts, int kThreads>
__device__ __forceinline__ void load_weight_scales(const MixedArgs& a, const OwnTile& tile, uint32_t to) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int i = thread; i < kParts * tile.count && thread < kThreads; i += kThreads) {
    const int part = i / tile.count, block = i - part * tile.count;
    ptx::cp_async_4(to + (part * a.max_chunk + block) * 4,
                    a.w_scale + int64_t{tile.first_row / kMixedRows + part} * a.num_blocks + tile.first_block + block);
  }
}

// One thread, which fills the ring: from the shared address `ring` on, stages of stage_bytes, of which the codes are the first.
template <int kParts>
__device__ __forceinline__ void load_codes(const MixedArgs& a, const OwnTile& tile, uint32_t ring, int stage_bytes, uint32_t codes_there,
                                           uint32_t empty) {
  constexpr uint32_t kBytes = kParts * kMixedPartBytes;
  const uint64_t policy = ptx::evict_first_policy();
  const uint8_t* const codes = a.codes +
                               (int64_t{tile.first_row / kMixedTileRows} * a.num_blocks + tile.first_block) * (2 * kMixedPartBytes) +
                               tile.first_row % kMixedTileRows * kMixedBlock;
  fill_ring(tile.count, a.stages, kBytes, codes_there, empty, a.in_flight, [&](int block, int stage, uint32_t there) {
    ptx::bulk_load(ring + stage * stage_bytes, codes + int64_t{block} * (2 * kMixedPartBytes), kBytes, there, policy);
  });
}

}  // namespace strata::cuda::sm90
