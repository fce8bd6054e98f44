// A bf16 linear layer for few tokens on Hopper: definitions shared by host code and the kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "formats/quantize.h"

namespace strata::cuda::sm90 {

inline constexpr int kBf16MaxTokens = 32;
inline constexpr int kBf16Rows = 64;   // output features of a 64-row group; a tile has one group, two or four
inline constexpr int kBf16Block = 64;  // channels per stage: 128 bytes of a row
inline constexpr int kBf16MaxStages = 24;

// One call. A weight is groups * n rows; group g multiplies x[:, g] to y[:, g].
struct Bf16LinearArgs {
  void* y;                    // bf16 or f32
  int64_t y_stride, y_group;  // elements
  bool y_f32;
  float* y_scale;  // quantised y: its scales, one per 128 features; null: y is not quantised
  int64_t y_scale_stride, y_scale_group;
  bool ue8m0;
  int num_tokens;
  int n;  // features per group
  int tiles_per_group;
  int tiles_per_block, num_tiles;  // of a CTA, consecutive; in all
  int num_blocks;                  // of kBf16Block channels
  int stages;                      // of the ring; if a CTA has several tiles, one per channel block of a tile
};

inline constexpr int kBf16Warpgroups = 4;  // that multiply: each a row group of the tile, or every n-th block of channels
inline constexpr int kBf16Consumers = 128 * kBf16Warpgroups;
inline constexpr int kBf16Threads = kBf16Consumers + 64;  // plus one warp that loads weights and one that loads tokens

// Compile-time parameters: rows of tokens (8, 16 or 32), and groups of 64 features, 1, 2 or 4. Warpgroups with the same features take the
// blocks of channels alternately.
struct Bf16Tile {
  int tokens, row_tiles;
  constexpr int rows() const { return row_tiles * kBf16Rows; }
  constexpr int slices() const { return kBf16Warpgroups / row_tiles; }
  constexpr int weight_bytes() const { return rows() * kBf16Block * 2; }
  constexpr int token_bytes() const { return tokens * kBf16Block * 2; }
  constexpr int stage_bytes() const { return weight_bytes() + token_bytes(); }
  // Quantised y: the tiles under one scale, whose CTAs exchange their largest values.
  constexpr int tiles_of_scale() const { return kActivationBlock / rows(); }
  // Floats of a token's sums; 4 more against bank conflicts.
  constexpr int sum_stride() const { return rows() + 4; }
  constexpr int sum_bytes() const { return slices() * tokens * sum_stride() * 4; }
};

// Dynamic shared memory: the ring, whose stages hold a block of a tile's weights and one of the tokens. The warpgroups' sums are stored
// there at the end; those of one of several tiles in its own stages. Then the largest values of the other tile under a scale, and barriers
// (full and empty of every stage, and for those values).
struct Bf16LinearShared {
  int largest, barriers, bytes;  // offsets
  constexpr Bf16LinearShared(const Bf16Tile& tile, int stages)
      : largest(std::max(stages * tile.stage_bytes(), tile.sum_bytes())),
        barriers(largest + tile.tokens * 4),
        bytes(barriers + stages * 16 + 8) {}
};

// The kernel of this tile, with quantised output (up to two row groups) or without. Its arguments: the tensor maps of the weight and of x,
// and Bf16LinearArgs.
const void* bf16_linear_kernel(const Bf16Tile& tile, bool quantized);

}  // namespace strata::cuda::sm90
