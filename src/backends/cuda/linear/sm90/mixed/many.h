// bf16 activations and a packed e4m3 weight on Hopper, many tokens: definitions shared by host code and the kernel.
#pragma once

#include "backends/cuda/linear/sm90/mixed/config.h"
#include "backends/cuda/linear/sm90/tile_walk.h"

namespace strata::cuda::sm90 {

// A tile: a packed tile's features, one row group per warpgroup, by the tokens of a cluster, which its CTAs share.
inline constexpr int kMixedManyTokens = kManyCluster * kManyTokens;
// wgmma truncates its fp32 sums, and this kernel sums over all channels: with 65536 channels 7e-4 is lost, more than the op allows.
inline constexpr int64_t kMixedManyChannels = 32768;
inline constexpr int kMixedManyOutTokens = 32;     // that are stored together
inline constexpr int kMixedManyThreads = 3 * 128;  // the first warpgroup loads operands

// One call. y: bf16.
struct MixedManyArgs {
  const uint8_t* packed_weight;  // of a packed weight
  const float* w_scale;
  int n, num_blocks;  // features per group; blocks of channels
  TileWalk walk;      // a cluster's tile: the adjacent tiles of its CTAs
};

// Dynamic shared memory, all offsets multiples of 1024 as swizzled operands need: two rings, of 64 channels of the tokens and of 128 of the
// weights, and two buffers per warpgroup for results.
struct MixedManyShared {
  static constexpr int kTokenStages = 5, kWeightStages = 3;
  static constexpr int kTokenBytes = kMixedManyTokens * 128, kWeightBytes = 2 * kMixedRowTileBytes;
  static constexpr int kOutBytes = kMixedManyOutTokens * kMixedRows * 2;
  static constexpr int kWeights = kTokenStages * kTokenBytes;
  static constexpr int kOut = kWeights + kWeightStages * kWeightBytes;  // [2 warpgroups][2]
  static constexpr int kBarriers = kOut + 4 * kOutBytes;                // full and empty of each stage, of tokens, of weights
  static constexpr int kBytes = kBarriers + (kTokenStages + kWeightStages) * 16;
};

// Arguments: the tensor maps of x (column groups, boxes of kManyTokens tokens and 64 channels) and of y (boxes of kMixedManyOutTokens
// tokens and 64 features of a group), and MixedManyArgs.
const void* mixed_many_kernel();

}  // namespace strata::cuda::sm90
