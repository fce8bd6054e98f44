// An FP8 linear layer for many tokens on Hopper: what host code and the kernel agree on.
#pragma once

#include <cstdint>

namespace strata::cuda::sm90 {

inline constexpr int kManyTokens = 256;    // of a tile: 128 of each of two warpgroups
inline constexpr int kManyFeatures = 128;  // of a tile
inline constexpr int kManyBlock = 128;     // channels at a time: those of one scale
inline constexpr int kManyCluster = 2;     // blocks with the same tokens
inline constexpr int kManyStages = 3;
inline constexpr int kManyThreads = 3 * 128;  // the first warpgroup asks for operands

struct ManyArgs {
  const float* x_scale;  // [blocks of 128 channels][x_scale_stride], readable to a whole number of tiles
  int64_t x_scale_stride;
  const float* w_scale;  // one a weight_block_rows x 128 block
  int64_t w_scale_stride;
  int weight_block_rows;
  int num_features, num_blocks;    // of k
  int token_tiles, feature_pairs;  // of tiles of a cluster's blocks
};

// Dynamic shared memory, all offsets multiples of 1024 as swizzled operands need. A stage: tokens, features, scales of the tokens.
struct ManyShared {
  static constexpr int kTokenBytes = kManyTokens * kManyBlock, kFeatureBytes = kManyFeatures * kManyBlock;
  static constexpr int kScaleBytes = kManyTokens * 4;
  static constexpr int kStageBytes = kTokenBytes + kFeatureBytes;
  static constexpr int kOut = kManyStages * kStageBytes;  // bf16 [2 warpgroups][2 halves of the features][128 tokens][64]
  static constexpr int kScales = kOut + kManyTokens * kManyFeatures * 2;
  static constexpr int kBarriers = kScales + kManyStages * kScaleBytes;  // full and empty of each stage, then the weight's scale of each
  static constexpr int kBytes = kBarriers + 1024;
};

const void* linear_many_kernel();

}  // namespace strata::cuda::sm90
