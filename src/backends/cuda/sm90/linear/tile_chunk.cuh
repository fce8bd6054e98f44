// The part of k that a CTA has of its tile.
#pragma once

namespace strata::cuda::sm90 {

// The blocks of k of CTA `rank` of the `split` that share a tile. Args: num_blocks, split.
struct TileChunk {
  int first, count;
  template <class Args>
  __device__ TileChunk(const Args& a, int rank)
      : first(a.num_blocks * rank / a.split), count(a.num_blocks * (rank + 1) / a.split - first) {}
};

}  // namespace strata::cuda::sm90
