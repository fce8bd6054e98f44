// Loads a tile's e4m3 weights and their scales to shared memory, for a CTA's share of k.
#pragma once

#include "backends/cuda/linear/sm90/fill_ring.cuh"
#include "backends/cuda/linear/sm90/mixed/config.h"
#include "backends/cuda/linear/sm90/own_tile.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/tma.cuh"

namespace strata::cuda::sm90 {

// Loads the scales, [kRowTiles][max_chunk], to the shared address `to`, by the CTA's first kThreads threads.
template <int kRowTiles, int kThreads>
__device__ __forceinline__ void load_weight_scales(const MixedArgs& a, const OwnTile& tile, uint32_t to) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int i = thread; i < kRowTiles * tile.count && thread < kThreads; i += kThreads) {
    const int row_tile = i / tile.count, block = i - row_tile * tile.count;
    ptx::cp_async_4(to + (row_tile * a.max_chunk + block) * 4,
                    a.w_scale + int64_t{tile.first_row / kMixedRows + row_tile} * a.num_blocks + tile.first_block + block);
  }
}

// By one thread. Fills the ring at the shared address `ring`, with stages of stage_bytes, which begin with the weights.
template <int kRowTiles>
__device__ __forceinline__ void load_weights(const MixedArgs& a, const OwnTile& tile, uint32_t ring, int stage_bytes, uint32_t weights_full,
                                             uint32_t empty) {
  constexpr uint32_t kBytes = kRowTiles * kMixedRowTileBytes;
  const uint64_t policy = ptx::evict_first_policy();
  const uint8_t* const packed_weight =
      a.packed_weight + (int64_t{tile.first_row / kMixedTileRows} * a.num_blocks + tile.first_block) * (2 * kMixedRowTileBytes) +
      tile.first_row % kMixedTileRows * kMixedBlock;
  fill_ring(tile.count, a.stages, kBytes, weights_full, empty, a.in_flight, [&](int block, int stage, uint32_t there) {
    ptx::bulk_load(ring + stage * stage_bytes, packed_weight + int64_t{block} * (2 * kMixedRowTileBytes), kBytes, there, policy);
  });
}

}  // namespace strata::cuda::sm90
