// A bf16 linear layer for few tokens on Hopper: what host code and the kernel agree on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "formats/quantize.h"

namespace strata::cuda::sm90 {

inline constexpr int kBf16MaxTokens = 32;
inline constexpr int kBf16Rows = 64;   // output features of a part; a tile is of one part, two or four
inline constexpr int kBf16Block = 64;  // channels at a time: 128 bytes of a row
inline constexpr int kBf16MaxStages = 24;

// One call. A weight is groups * n rows; group g multiplies x[:, g] to y[:, g].
struct Bf16LinearArgs {
  void* y;                    // bf16 or f32
  int64_t y_stride, y_group;  // elements
  bool y_f32;
  float* y_scale;  // y are codes, and this their scales, one of 128 features; null: y are values
  int64_t y_scale_stride, y_scale_group;
  bool ue8m0;
  int num_tokens;
  int n;  // features of a group
  int tiles_per_group;
  int tiles_per_block, num_tiles;  // of a block of threads, consecutive ones; of all
  int num_blocks;                  // of kBf16Block channels
  int stages;                      // of the ring; as many as a block's tiles have blocks of channels, if these are several tiles
};

inline constexpr int kBf16Warpgroups = 4;  // that multiply: a part of the tile each, or blocks of channels in turns
inline constexpr int kBf16Consumers = 128 * kBf16Warpgroups;
inline constexpr int kBf16Threads = kBf16Consumers + 64;  // and a warp each that asks for weights and for tokens

// What is fixed when the kernel is compiled: rows of tokens (8, 16 or 32), and parts of 64 features, 1, 2 or 4. The warpgroups that have a
// part take the blocks of channels in turns.
struct Bf16Tile {
  int tokens, parts;
  constexpr int rows() const { return parts * kBf16Rows; }
  constexpr int slices() const { return kBf16Warpgroups / parts; }
  constexpr int weight_bytes() const { return rows() * kBf16Block * 2; }
  constexpr int token_bytes() const { return tokens * kBf16Block * 2; }
  constexpr int stage_bytes() const { return weight_bytes() + token_bytes(); }
  // Where y are codes: the tiles under one scale, whose CTAs tell each other the largest value.
  constexpr int tiles_of_scale() const { return kActivationBlock / rows(); }
  // Floats of a token's sums; 4 against bank conflicts.
  constexpr int sum_stride() const { return rows() + 4; }
  constexpr int sum_bytes() const { return slices() * tokens * sum_stride() * 4; }
};

// Dynamic shared memory: the ring, of which a stage is a block of a tile's weights and one of the tokens, and where the warpgroups' sums
// are in the end, those of one of several tiles in its own stages; the largest values of the other tile under a scale; barriers (full and
// empty of every stage, those values).
struct Bf16LinearShared {
  int largest, barriers, bytes;  // offsets
  constexpr Bf16LinearShared(const Bf16Tile& tile, int stages)
      : largest(std::max(stages * tile.stage_bytes(), tile.sum_bytes())),
        barriers(largest + tile.tokens * 4),
        bytes(barriers + stages * 16 + 8) {}
};

// The kernel of this tile that leaves codes, of up to two parts, or values: of the tensor maps of the weight and of x, and the arguments.
const void* bf16_linear_kernel(const Bf16Tile& tile, bool codes);

}  // namespace strata::cuda::sm90
