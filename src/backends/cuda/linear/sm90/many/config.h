// An FP8 linear layer for many tokens on Hopper: definitions shared by host code and the kernel.
#pragma once

#include <cstdint>

#include "backends/cuda/linear/sm90/tile_walk.h"

namespace strata::cuda::sm90 {

// A tile has 64 tokens of each of two warpgroups; its features are multiplied 128 at a time.
inline constexpr int kManyBlock = 128;  // channels at a time: those of one scale
inline constexpr int kManyStages = 3;
inline constexpr int kManyThreads = 3 * 128;  // the first warpgroup loads operands

struct ManyArgs {
  const float* x_scale;  // [groups][blocks of 128 channels][x_scale_stride], readable up to a multiple of a cluster's tokens
  int64_t x_scale_stride;
  const float* w_scale;  // one per weight_block_rows x 128 block
  int64_t w_scale_stride;
  int weight_block_rows;
  int num_features, num_blocks;  // per group; blocks of k
  int x_group_stride, y_group_stride;
  TileWalk walk;
};

// Dynamic shared memory, all offsets multiples of 1024 as swizzled operands need. A stage: tokens, features.
struct ManyShared {
  static constexpr int kTokenBytes = kManyTokens * kManyBlock, kFeatureBytes = kManyFeatures * kManyBlock;
  static constexpr int kScaleBytes = kManyTokens * 4;
  static constexpr int kStageBytes = kTokenBytes + kFeatureBytes;
  static constexpr int kOut = kManyStages * kStageBytes;                  // bf16 [8 warps][4 quarters of the features][16 tokens][64]
  static constexpr int kScales = kOut + kManyTokens * kManyFeatures * 2;  // of the tokens, per stage
  static constexpr int kBarriers = kScales + kManyStages * kScaleBytes;   // full and empty per stage
  static constexpr int kCoords = kBarriers + kManyStages * 16;            // 16 bytes per stage: where in y the tile that begins there is
  static constexpr int kWeightScales = kCoords + kManyStages * 16;        // two per stage: one for each half of the features
  static constexpr int kBytes = kWeightScales + kManyStages * 8;
};

const void* linear_many_kernel();

}  // namespace strata::cuda::sm90
