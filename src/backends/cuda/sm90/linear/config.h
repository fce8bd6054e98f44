// An FP8 linear layer for few tokens on Hopper: what host code and the kernel agree on.
#pragma once

#include <cstdint>

namespace strata::cuda::sm90 {

inline constexpr int kLinearMaxTokens = 64;
inline constexpr int kLinearTileRows = 64;  // output features at a time
inline constexpr int kLinearBlock = 128;    // channels at a time: those of one scale
inline constexpr int kLinearStageBytes = kLinearTileRows * kLinearBlock;
inline constexpr int kLinearWarpgroups = 2;  // that multiply; one more warp asks for weights, one tells the cluster of partial sums
inline constexpr int kLinearConsumers = 128 * kLinearWarpgroups;
inline constexpr int kLinearThreads = kLinearConsumers + 64;
inline constexpr int kLinearMaxStages = 16;  // more only make every other load wait behind more requests
// Beside other work: two such kernels, or one and an indexer's, fit on an SM together. Alone up to a fifth slower, in a V4-Pro layer 6 us
// less.
inline constexpr int kLinearSharedStages = 8;
inline constexpr int kLinearPartialStride = kLinearTileRows + 4;  // floats of a token's partial sums; 4 against bank conflicts

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
  int tiles_per_group, num_tiles, num_blocks;  // of kLinearTileRows features; of kLinearBlock channels
  int split;                                   // CTAs of a cluster, each with a part of k
  int stages, max_chunk;                       // of the ring, even; blocks of k of one CTA at most
};

// Dynamic shared memory: the ring, the tokens' rows of this CTA's part of k, two buffers of partial sums, scales of x and of
// the stages, barriers (full and empty of every stage; partial sums ready and read, in the CTA and in the cluster).
struct LinearShared {
  int tokens, partial, x_scale, w_scale, barriers, bytes;  // offsets
  constexpr LinearShared(int token_rows, int max_chunk, int stages)
      : tokens(stages * kLinearStageBytes),
        partial(tokens + max_chunk * token_rows * kLinearBlock),
        x_scale(partial + 2 * token_rows * kLinearPartialStride * 4),
        w_scale(x_scale + max_chunk * token_rows * 4),
        barriers(w_scale + (stages + 1) / 2 * 8),
        bytes(barriers + stages * 16 + 32) {}
};

// The kernel for this many token rows: 8, 16, 32 or 64.
const void* linear_kernel(int token_rows);

}  // namespace strata::cuda::sm90
