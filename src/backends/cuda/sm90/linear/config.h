// An FP8 linear layer for few tokens on Hopper: what host code and the kernel agree on.
#pragma once

#include <cstdint>

namespace strata::cuda::sm90 {

inline constexpr int kLinearMaxTokens = 64;
inline constexpr int kLinearBlock = 128;          // channels at a time: those of one scale
inline constexpr int kLinearRows = 64;            // output features that a warpgroup multiplies
inline constexpr int kLinearMaxRing = 128 << 10;  // bytes; more only make every other load wait behind more requests
// Beside other work: two such kernels, or one and an indexer's, fit on an SM together. Alone up to a fifth slower, in a V4-Pro layer 6 us
// less.
inline constexpr int kLinearSharedRing = 64 << 10;
inline constexpr int kLinearPartialStride = kLinearRows + 4;  // floats of a token's partial sums; 4 against bank conflicts

// What is fixed when the kernel is compiled: rows of tokens (8, 16, 32 or 64), and parts of a tile, 1, or 2 for up to 32 tokens. Two
// warpgroups multiply: each has a part, or every second block of k of the only one. One more warp asks for weights, one tells the cluster
// of partial sums.
struct LinearTile {
  int tokens, parts;

  constexpr int rows() const { return parts * kLinearRows; }
  constexpr int stage_bytes() const { return rows() * kLinearBlock; }
};
inline constexpr int kLinearConsumers = 256;
inline constexpr int kLinearThreads = kLinearConsumers + 64;

// One call. A weight is groups * n rows; group g multiplies x[:, g] to y[:, g].
struct LinearArgs {
  const uint8_t* x;           // e4m3
  int64_t x_stride, x_group;  // between tokens, between groups
  const float* x_scale;       // [T][G][blocks of 128 channels]
  int64_t x_scale_stride, x_scale_group;
  const float* w_scale;  // one a weight_block_rows x 128 block
  int64_t w_scale_stride;
  int weight_block_rows;
  void* y;                    // bf16 or f32
  int64_t y_stride, y_group;  // elements
  bool y_f32;
  bool x_aligned;  // to 16 bytes, and all its rows
  int num_tokens;
  int n, k;                                    // features of a group
  int tiles_per_group, num_tiles, num_blocks;  // of the rows of a tile; of kLinearBlock channels
  int split;                                   // CTAs of a cluster, each with a part of k
  int stages, max_chunk;                       // of the ring; blocks of k of one CTA at most
};

// Dynamic shared memory: the ring, the tokens' rows of this CTA's part of k, two buffers of partial sums, scales of x and of
// the stages, barriers (full and empty of every stage; partial sums ready and read, in the CTA and in the cluster).
struct LinearShared {
  int tokens, partial, x_scale, w_scale, barriers, bytes;  // offsets
  constexpr LinearShared(const LinearTile& tile, int max_chunk, int stages)
      : tokens(stages * tile.stage_bytes()),
        partial(tokens + max_chunk * tile.tokens * kLinearBlock),
        x_scale(partial + 2 * tile.tokens * tile.parts * kLinearPartialStride * 4),
        w_scale(x_scale + max_chunk * tile.tokens * 4),
        barriers(w_scale + stages * 4),
        bytes(barriers + stages * 16 + 32) {}
};

// The kernel of this tile.
const void* linear_kernel(const LinearTile& tile);

}  // namespace strata::cuda::sm90
