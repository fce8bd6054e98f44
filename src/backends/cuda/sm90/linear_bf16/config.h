// A bf16 linear layer for few tokens on Hopper: what host code and the kernel agree on.
#pragma once

#include <cstdint>

namespace strata::cuda::sm90 {

inline constexpr int kBf16MaxTokens = 32;
inline constexpr int kBf16Rows = 64;   // output features of a warpgroup; a tile is of one warpgroup or of two
inline constexpr int kBf16Block = 64;  // channels at a time: 128 bytes of a row
inline constexpr int kBf16MaxStages = 24;

// One call. A weight is groups * n rows; group g multiplies x[:, g] to y[:, g].
struct Bf16LinearArgs {
  void* y;                    // bf16 or f32
  int64_t y_stride, y_group;  // elements
  bool y_f32;
  int num_tokens;
  int n;  // features of a group
  int tiles_per_group;
  int num_blocks;  // of kBf16Block channels
  int stages;      // of the ring
};

// Warpgroups that multiply, and a warp that asks for what they read.
constexpr int bf16_threads(int warpgroups) { return 128 * warpgroups + 32; }

// Dynamic shared memory for so many token rows and features of a tile: the ring, of which a stage is a block of the tile's weights and one
// of the tokens; the tile's sums; barriers (full and empty of every stage).
struct Bf16LinearShared {
  int stage, sums, barriers, bytes;  // bytes of a stage, offsets
  constexpr Bf16LinearShared(int token_rows, int tile, int stages)
      : stage((tile + token_rows) * kBf16Block * 2),
        sums(stages * stage),
        barriers(sums + token_rows * sum_stride(tile) * 4),
        bytes(barriers + stages * 16) {}
  // Floats of a token's sums: 4 more than there are features, against bank conflicts.
  static constexpr int sum_stride(int tile) { return tile + 4; }
};

// The kernel for 16 or 32 token rows and 1 or 2 warpgroups: of the tensor maps of the weight and of x, and the arguments.
const void* bf16_linear_kernel(int token_rows, int warpgroups);

}  // namespace strata::cuda::sm90
