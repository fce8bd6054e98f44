// The tiles of a product of many tokens, and the order in which clusters process them: definitions shared by host code and kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ceil_div.h"

namespace strata::cuda::sm90 {

inline constexpr int kManyTokens = 128;    // of a tile
inline constexpr int kManyFeatures = 256;  // of a tile
inline constexpr int kManyCluster = 2;     // CTAs with the same features and neighbouring tokens
inline constexpr int kManyBand = 8;        // feature tiles that clusters process before the next tokens

inline int64_t many_clusters(int num_sms) { return num_sms / kManyCluster; }  // at once

struct TileWalk {
  int token_pairs = 0, feature_tiles = 0;  // of the tiles of a cluster's CTAs; of all groups
  int group_tiles = 0;                     // feature tiles of a group

  TileWalk() = default;
  TileWalk(int64_t tokens, int64_t features, int64_t groups)
      : token_pairs(static_cast<int>(ceil_div(tokens, int64_t{kManyCluster} * kManyTokens))),
        feature_tiles(static_cast<int>(groups * ceil_div(features, int64_t{kManyFeatures}))),
        group_tiles(static_cast<int>(ceil_div(features, int64_t{kManyFeatures}))) {}
  int64_t tiles() const { return int64_t{token_pairs} * feature_tiles; }  // of clusters
  int64_t rounds(int num_sms) const { return ceil_div(tiles(), many_clusters(num_sms)); }
  unsigned blocks(int num_sms) const { return static_cast<unsigned>(std::min(tiles(), many_clusters(num_sms)) * kManyCluster); }
};

}  // namespace strata::cuda::sm90
