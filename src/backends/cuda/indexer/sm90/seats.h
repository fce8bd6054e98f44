// How the warpgroups of the prefill kernel share the tiles of a run, consecutive tokens of one request.
//
// A run has a seat for as many of its tokens as a warpgroup scores at a time. Where its seats are at most half of the warpgroups, as those
// of a decode request beside a prompt or of each of a batch with a few tokens of its own are, they are there twice or four times, and
// these copies take the run's tiles in turns.
#pragma once

#include "formats/macros.h"

namespace strata::cuda::sm90 {

inline constexpr int kPrefillWarpgroups = 4;

STRATA_HOST_DEVICE constexpr int seats_of(int tokens, int tokens_of_seat) { return (tokens + tokens_of_seat - 1) / tokens_of_seat; }
// Without a division.
STRATA_HOST_DEVICE constexpr int copies_of(int seats) { return seats == 1 ? 4 : seats == 2 ? 2 : 1; }
// The copy that a warpgroup is of; copies_of(seats) where it is of none. Its seat is warpgroup - seats * turn_of(...).
STRATA_HOST_DEVICE constexpr int turn_of(int warpgroup, int seats) {
  return seats == 1 ? warpgroup : seats == 2 ? warpgroup / 2 : warpgroup >= seats ? 1 : 0;
}

// What it takes to begin with a token (length, page numbers, queries), in tiles. A part that is made of short tokens would take several
// times as long as the others without it.
inline constexpr int kTokenStart = 6;

// What a tile takes, in eighths of what it takes where every warpgroup multiplies it. One warpgroup's product takes a quarter; all blocks
// together get its rows from memory in 450 cycles, which is more. And what a run takes to begin with.
inline constexpr int kTileWork = 8, kTileWorkOfTwo = 5, kTileWorkOfOne = 3;  // by seats
inline constexpr int kRunStart = kTokenStart * kTileWork;

STRATA_HOST_DEVICE constexpr int run_work(int seats, int tiles) {
  return kRunStart + tiles * (seats == 1 ? kTileWorkOfOne : seats == 2 ? kTileWorkOfTwo : kTileWork);
}
// Tiles of a run that its first `work` begin with: of parts of the work that lie side by side each tile is one's.
STRATA_HOST_DEVICE constexpr int tiles_in_work(int seats, int work) {
  const int of_tiles = work > kRunStart ? work - kRunStart : 0;
  if (seats == 1) return (of_tiles + kTileWorkOfOne - 1) / kTileWorkOfOne;
  if (seats == 2) return (of_tiles + kTileWorkOfTwo - 1) / kTileWorkOfTwo;
  return (of_tiles + kTileWork - 1) / kTileWork;
}

}  // namespace strata::cuda::sm90
