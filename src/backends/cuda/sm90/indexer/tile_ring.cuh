// Shared memory of the logits kernels for few tokens: a ring of tiles that a warp fills by the copy engine and warpgroups take in turn, all
// with the same queries.
#pragma once

#include "backends/cuda/sm90/indexer/scorer.cuh"

namespace strata::cuda::sm90 {

// Behind it the rows of so many tiles as a launch has slots, kMostSlots at most. Slots are a multiple of the warpgroups, so that a slot is
// always the same one's: another one, which may be ahead of it, would take an earlier turn's tile for its own.
template <int kMostSlots>
struct alignas(1024) RingShared {
  uint8_t queries[Scorer<64, 1>::kQueryBytes];
  float scales[kMostSlots][kTileRows];
  float weights[64];
  uint64_t full[kMostSlots], empty[kMostSlots];
  __device__ uint8_t* rows(int slot) { return reinterpret_cast<uint8_t*>(this + 1) + slot * kRowBytes; }
};

}  // namespace strata::cuda::sm90
