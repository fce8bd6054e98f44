// What the roles of the kernel have in common: the ring of stages, where bytes are.
#pragma once

#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/sm90/sparse_prefill/config.h"

namespace strata::cuda::sparse_prefill {

// A place in a ring of kCount and the parity of the round.
template <int kCount>
struct RingPosition {
  uint32_t at = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++at == kCount) at = 0, parity ^= 1u;
  }
};

// The stage of a tile and the parity of its round. Stages are taken in a circle whose sense changes with every item, behind its queries,
// where those are one tile: the stage of an item's last tile, from which the output leaves, is then the last to be filled again. No two
// tiles in a row have the same stage, as the values of one wait for the logits of the next.
class StagePosition {
 public:
  uint32_t at = 0;
  __device__ __forceinline__ uint32_t parity() const { return parities >> at & 1u; }
  __device__ __forceinline__ void advance() {
    parities ^= 1u << at;
    at += step;
    if (at >= kStages) at -= kStages;
  }
  // From a tile of an item's queries.
  template <int kQueryTiles>
  __device__ __forceinline__ void advance_queries() {
    advance();
    if (kQueryTiles == 1) step = kStages - step;
  }

 private:
  uint32_t parities = 0, step = 1;
};

// Byte offset of a 16-byte unit in a chunk [rows][8 units].
__device__ __forceinline__ uint32_t unit_offset(int row, int unit) { return static_cast<uint32_t>(row * 128 + ((unit ^ (row & 7)) << 4)); }

// One arrival a warp, behind what all its lanes did.
__device__ __forceinline__ void arrive_warp(const uint64_t& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
}
__device__ __forceinline__ void wait(const uint64_t& barrier, uint32_t parity) {
  ptx::mbarrier_wait(ptx::shared_address(&barrier), parity);
}

// Of a thread of a warpgroup: its accumulators belong to heads row and row + 8 of the item's 64.
__device__ __forceinline__ int accumulator_row() { return threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4; }

}  // namespace strata::cuda::sparse_prefill
