// The tile of a CTA, and its share of k.
#pragma once

#include "backends/cuda/ptx/cluster.cuh"

namespace strata::cuda::sm90 {

// For a grid of (tiles of a group, groups). Each tile has `split` CTAs, a cluster, with a share of k each. Args: n, tile_rows, split,
// num_blocks.
struct OwnTile {
  int rank;                             // among the CTAs that share the tile
  int group, first_feature, first_row;  // of the group; of the weight
  int first_block, count;               // blocks of k
  template <class Args>
  __device__ explicit OwnTile(const Args& a)
      : rank(static_cast<int>(ptx::cluster_rank())),
        group(static_cast<int>(blockIdx.y)),
        first_feature(static_cast<int>(blockIdx.x) / a.split * a.tile_rows),
        first_row(group * a.n + first_feature),
        first_block(a.num_blocks * rank / a.split),
        count(a.num_blocks * (rank + 1) / a.split - first_block) {}
};

}  // namespace strata::cuda::sm90
