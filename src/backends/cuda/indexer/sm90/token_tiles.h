// How the warpgroups of the prefill kernel share the tiles of a run (consecutive tokens of one request).
//
// A run has one token tile per group of tokens that a warpgroup scores at a time. Where its token tiles are at most half of the warpgroups,
// the tiles are duplicated two or four times, and these copies process the run's tiles alternately. This is so for a decode request
// together with a prompt, and in batches of requests with few tokens each.
#pragma once

#include "formats/macros.h"

namespace strata::cuda::sm90 {

inline constexpr int kPrefillWarpgroups = 4;

STRATA_HOST_DEVICE constexpr int num_token_tiles(int tokens, int tile_tokens) { return (tokens + tile_tokens - 1) / tile_tokens; }
// Without a division.
STRATA_HOST_DEVICE constexpr int copies_of(int token_tiles) { return token_tiles == 1 ? 4 : token_tiles == 2 ? 2 : 1; }
// The copy that a warpgroup belongs to; copies_of(token_tiles) if it belongs to none. Its token tile is warpgroup - token_tiles *
// copy_of(...).
STRATA_HOST_DEVICE constexpr int copy_of(int warpgroup, int token_tiles) {
  return token_tiles == 1 ? warpgroup : token_tiles == 2 ? warpgroup / 2 : warpgroup >= token_tiles ? 1 : 0;
}

// Time to begin with a token (length, page numbers, queries), in tiles. Without it a share made of short tokens would take several times as
// long as the other shares.
inline constexpr int kTokenStart = 6;

// Time of a tile, in eighths of its time with every warpgroup multiplying. One warpgroup's product takes a quarter; loading the tile's rows
// by all CTAs takes 450 cycles, which is more.
inline constexpr int kTileWork = 8, kTileWorkOfTwo = 5, kTileWorkOfOne = 3;  // by token tiles
inline constexpr int kRunStartWork = kTokenStart * kTileWork;

STRATA_HOST_DEVICE constexpr int run_work(int token_tiles, int tiles) {
  return kRunStartWork + tiles * (token_tiles == 1 ? kTileWorkOfOne : token_tiles == 2 ? kTileWorkOfTwo : kTileWork);
}
// Tiles of a run that begin within its first `work` units of work: each tile belongs to exactly one of adjacent shares.
STRATA_HOST_DEVICE constexpr int tiles_in_work(int token_tiles, int work) {
  const int of_tiles = work > kRunStartWork ? work - kRunStartWork : 0;
  if (token_tiles == 1) return (of_tiles + kTileWorkOfOne - 1) / kTileWorkOfOne;
  if (token_tiles == 2) return (of_tiles + kTileWorkOfTwo - 1) / kTileWorkOfTwo;
  return (of_tiles + kTileWork - 1) / kTileWork;
}

}  // namespace strata::cuda::sm90
