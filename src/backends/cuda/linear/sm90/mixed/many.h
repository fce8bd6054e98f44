// bf16 activations and a packed e4m3 weight on Hopper, many tokens: what host code and the kernel agree on.
#pragma once

#include "backends/cuda/linear/sm90/mixed/config.h"
#include "backends/cuda/linear/sm90/tile_walk.h"

namespace strata::cuda::sm90 {

// A tile: a packed tile's features, one part of each of two warpgroups, by the tokens of a cluster, which its blocks share.
inline constexpr int kMixedManyTokens = kManyCluster * kManyTokens;
// wgmma truncates its fp32 sums, and this kernel has one sum of all channels: of 65536 channels 7e-4 is lost, more than the op allows.
inline constexpr int64_t kMixedManyChannels = 32768;
inline constexpr int kMixedManyOutTokens = 32;     // that leave together
inline constexpr int kMixedManyThreads = 3 * 128;  // the first warpgroup asks for operands

// One call. y: bf16.
struct MixedManyArgs {
  const uint8_t* codes;  // of a packed weight
  const float* w_scale;
  int n, num_blocks;  // features of a group; blocks of channels
  TileWalk walk;      // a cluster's tile: a tile of each of its blocks, one beside the other
};

// Dynamic shared memory, all offsets multiples of 1024 as swizzled operands need: two rings, of 64 channels of the tokens and of 128 of the
// codes, and two places of each warpgroup for results on their way to y.
struct MixedManyShared {
  static constexpr int kTokenStages = 5, kCodeStages = 3;
  static constexpr int kTokenBytes = kMixedManyTokens * 128, kCodeBytes = 2 * kMixedPartBytes;
  static constexpr int kOutBytes = kMixedManyOutTokens * kMixedRows * 2;
  static constexpr int kCodes = kTokenStages * kTokenBytes;
  static constexpr int kOut = kCodes + kCodeStages * kCodeBytes;  // [2 warpgroups][2]
  static constexpr int kBarriers = kOut + 4 * kOutBytes;          // full and empty of each stage, of tokens, of codes
  static constexpr int kBytes = kBarriers + (kTokenStages + kCodeStages) * 16;
};

// Of the tensor maps of x (column groups, boxes of kManyTokens tokens and 64 channels) and of y (boxes of kMixedManyOutTokens tokens and 64
// features of a group), and the arguments.
const void* mixed_many_kernel();

}  // namespace strata::cuda::sm90
