// A cluster's position on its walk over the tiles of a product of many tokens.
#pragma once

#include "backends/cuda/linear/sm90/tile_walk.h"

namespace strata::cuda::sm90 {

// The tiles of this cluster, in order.
struct ManyTiles {
  int tile;
  __device__ ManyTiles() : tile(blockIdx.x / kManyCluster) {}
  __device__ bool done(const TileWalk& w) const { return tile >= w.token_pairs * w.feature_tiles; }
  __device__ void next() { tile += gridDim.x / kManyCluster; }
};

// Where a cluster's tile begins; for a cluster of two tiles adjacent in tokens, that of the CTA `rank`.
struct ManyTileCoord {
  int token, group, feature;  // feature: of the group
  __device__ ManyTileCoord(const TileWalk& w, int tile, int rank = 0) {
    const int of_band = kManyBand * w.token_pairs, band = tile / of_band, in_band = tile - band * of_band;
    const int width = min(kManyBand, w.feature_tiles - band * kManyBand), pair = in_band / width;
    token = (pair * kManyCluster + rank) * kManyTokens;
    const int feature_tile = band * kManyBand + in_band - pair * width;
    group = feature_tile / w.group_tiles;
    feature = (feature_tile - group * w.group_tiles) * kManyFeatures;
  }
};

}  // namespace strata::cuda::sm90
