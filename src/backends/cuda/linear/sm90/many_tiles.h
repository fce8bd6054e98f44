// An FP8 linear layer for few tokens on Hopper with more tiles of 128 features than SMs: definitions shared by host code and the kernel.
#pragma once

#include "backends/cuda/linear/sm90/token_product.h"

namespace strata::cuda::sm90 {

inline constexpr int kManyTilesMaxTokens = 64;
inline constexpr int kManyTilesRows = 128;  // features of a tile: two warpgroups, a team
inline constexpr int kManyTilesTeams = 2;   // that alternate in tiles
inline constexpr int kManyTilesConsumers = 256 * kManyTilesTeams;
inline constexpr int kManyTilesThreads = kManyTilesConsumers + 32 * kManyTilesTeams;  // a warp of each team loads what the team reads
inline constexpr int kManyTilesStage = kManyTilesRows * kLinearBlock;                 // bytes

struct ManyTilesArgs : TokenProductArgs {
  int num_tiles;
  int stages;  // of a team's ring
};

// Dynamic shared memory for `token_rows` token rows: a ring of weights per team, the tokens' rows, their scales, the scales of the stages,
// and barriers (full and empty of every stage, one per block of the tokens).
struct ManyTilesShared {
  int tokens, x_scale, w_scale, barriers, bytes;  // offsets
  constexpr ManyTilesShared(int token_rows, int num_blocks, int stages)
      : tokens(kManyTilesTeams * stages * kManyTilesStage),
        x_scale(tokens + num_blocks * token_rows * kLinearBlock),
        w_scale(x_scale + num_blocks * token_rows * 4),
        barriers(w_scale + kManyTilesTeams * stages * 4),
        bytes(barriers + kManyTilesTeams * stages * 16 + num_blocks * 8) {}
};

// The kernel for 8, 16, 32 or 64 token rows. Its arguments: the tensor maps of the weight and of x, and the struct above.
const void* many_tiles_kernel(int token_rows);

// Whether there are more tiles than SMs.
bool many_tiles_fill(const LinearWeight& weight, const Capabilities& device);
// Stages of a team's ring; 0 if the kernel cannot take the weight.
int many_tiles_stages(const LinearWeight& weight, int64_t tokens, bool shares_device, const Capabilities& device);
void run_many_tiles(int stages, const TokenProduct& product, const Capabilities& device, cudaStream_t stream);

}  // namespace strata::cuda::sm90
