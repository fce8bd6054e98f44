// The blocks of a call, from what the host knows: shapes. The lengths are on the device (TokenRows).
#pragma once

#include "backends/cuda/common/grid.h"
#include "backends/cuda/sm90/sparse_decode/split.h"
#include "backends/cuda/sm90/sparse_decode/tile.h"

namespace strata::cuda::sparse_decode {

struct Problem {
  int64_t tokens, heads;
  int64_t tiles;  // of a token's rows, if every entry is looked at
  int64_t num_sms;
  bool batch_invariant;
  bool can_take_turns;  // as format and alignment go: blocks of 128 heads (head_turns.cuh)
};

struct Plan {
  int64_t block_heads;
  int64_t tiles_per_split = 0;  // as in DecodeArgs
  int64_t splits = 1;
  int64_t most_parts = 0;  // of all tokens: room for them does not shrink as tokens or tiles grow, nor depend on can_take_turns
};

// Blocks of 64 heads convert a row once for all of them; those of fewer heads have less to do before and after their rows. So heads are
// spread over blocks of few if all blocks run at a time, with no more than two or three tiles each (measured:
// docs/kernels/20261121-sparse-decode.md).
inline int64_t block_heads(const Problem& p) {
  for (const int64_t heads : {8, 16, 32}) {
    const int64_t most_tiles = heads <= 16 ? 3 : 2, blocks = ceil_div(p.heads, heads) * ceil_div(p.tiles, most_tiles);
    if (p.heads <= heads || (!p.batch_invariant && p.tokens * blocks <= p.num_sms)) return heads;
  }
  // Both turns in one block take 5/3 of the time of one (measured).
  const int64_t rounds = ceil_div(p.tokens * ceil_div(p.heads, kHeadTile), p.num_sms), rounds_of_turns = ceil_div(p.tokens, p.num_sms);
  return p.can_take_turns && p.heads > kHeadTile && p.tiles <= kStages && 5 * rounds_of_turns < 3 * rounds ? 2 * kHeadTile : kHeadTile;
}

inline Plan plan(const Problem& p) {
  Plan plan{.block_heads = block_heads(p)};
  if (p.batch_invariant) {
    plan.tiles_per_split = kInvariantTiles;
    plan.splits = p.tiles > kInvariantTiles ? ceil_div(p.tiles, kInvariantTiles) : 1;
    if (plan.splits > 1) plan.most_parts = p.tokens * plan.splits;
  } else if (p.tiles > 1) {
    const bool takes_turns = plan.block_heads > kHeadTile;  // no parts, but room as for blocks of 64 heads
    const int64_t slots = p.num_sms / ceil_div(p.heads, takes_turns ? kHeadTile : plan.block_heads);
    plan.most_parts = most_parts(p.tokens, p.tiles, slots);
    if (takes_turns) return plan;
    // 64ths of the time of a tile of 64 heads. A part makes the merge longer for its own token and for the memory of all.
    const int64_t tile = plan.block_heads <= 8 ? 35 : plan.block_heads <= 16 ? 38 : plan.block_heads <= 32 ? 50 : kUsualTile;
    plan.splits = choose_splits(p.tokens, p.tiles, slots, {.fixed = 56, .of_split = 1 + p.tokens * ceil_div(p.heads, kHeadTile)}, tile);
  }
  return plan;
}

}  // namespace strata::cuda::sparse_decode
