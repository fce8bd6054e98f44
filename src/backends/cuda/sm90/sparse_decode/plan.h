// The blocks of a call, from what the host knows: shapes. The lengths are on the device (TokenRows).
#pragma once

#include <algorithm>

#include "backends/cuda/common/grid.h"
#include "backends/cuda/sm90/sparse_decode/tile.h"
#include "strata/kv_format.h"

namespace strata::cuda::sparse_decode {

// A batch-invariant call cuts every token's rows at the same places, whatever else is in the batch: 2048 rows a part.
inline constexpr int64_t kInvariantTiles = 32;

struct Problem {
  int64_t tokens, heads;
  int64_t tiles;  // of a token's rows, if every entry is looked at
  int64_t num_sms;
  KvFormat format;
  bool batch_invariant;
  bool can_take_turns;  // as format and alignment go: blocks of 128 heads (head_turns.cuh)
};

struct Plan {
  int64_t block_heads;
  int64_t tiles_per_split = 0;  // as in DecodeArgs
  int64_t splits = 1;
  int64_t most_parts = 0;  // of all tokens: room for them does not shrink as tokens or tiles grow, nor depend on can_take_turns
};

// What blocks of some heads take, in hundredths of a microsecond, fitted to calls of 64 and 128 heads, 128 to 8320 rows and 1 to 256
// tokens on an H200 (docs/kernels/20261121-sparse-decode.md). A call has the blocks whose time is shortest by these.
struct BlockCost {
  int64_t heads;
  int64_t start, tile;        // what a block does before and after its rows, and for each 64 of them
  int64_t crowd, tile_crowd;  // more with a block on every SM than with one on every second, which shares its way to memory with another
};
inline constexpr BlockCost kV4Costs[] = {
    {8, 330, 107, 120, 0}, {16, 375, 118, 120, 0}, {32, 490, 152, 130, 0}, {64, 660, 208, 230, 0}, {128, 1310, 208, 480, 0}};
inline constexpr BlockCost kMlaCosts[] = {{8, 400, 120, 120, 15}, {16, 470, 128, 120, 30}, {32, 570, 156, 120, 20}, {64, 690, 206, 0, 37}};
// Merging parts.
inline constexpr int64_t kMerge = 190, kMergeOfPart = 5, kMergeOf1024Heads = 42;  // the last: heads of all parts of all tokens

inline int64_t cost(const Problem& p, const BlockCost& block, int64_t splits) {
  const int64_t tiles = ceil_div(p.tiles, splits), blocks = p.tokens * ceil_div(p.heads, block.heads) * splits;
  const int64_t rounds = ceil_div(blocks, p.num_sms), crowd = block.crowd + tiles * block.tile_crowd;
  const int64_t shared_ways = std::min(std::max<int64_t>(2 * blocks - p.num_sms, 0), p.num_sms);
  const int64_t merge = kMerge + kMergeOfPart * splits + kMergeOf1024Heads * p.tokens * p.heads * splits / 1024;
  return rounds * (block.start + tiles * block.tile) + rounds * crowd * shared_ways / p.num_sms + (splits > 1 ? merge : 0);
}

inline Plan plan(const Problem& p) {
  Plan plan{.block_heads = 0};
  int64_t most_splits = p.tiles, least = 0;
  if (p.batch_invariant) {
    plan.tiles_per_split = kInvariantTiles;
    most_splits = std::max<int64_t>(ceil_div(p.tiles, kInvariantTiles), 1);
    if (most_splits > 1) plan.most_parts = p.tokens * most_splits;
  } else if (p.tiles > 1) {
    // No more than two rounds of blocks of 64 heads: this bounds the workspace.
    plan.most_parts = std::min(p.tokens * p.tiles, 2 * p.num_sms / ceil_div(p.heads, kHeadTile));
    most_splits = plan.most_parts / std::max<int64_t>(p.tokens, 1);
  }
  const auto consider = [&](const BlockCost& block) {
    const bool takes_turns = block.heads > kHeadTile, too_many = block.heads > 8 && 2 * p.heads <= block.heads,
               too_few = p.batch_invariant && block.heads < std::min<int64_t>(p.heads, kHeadTile);
    if (too_many || too_few || (takes_turns && (!p.can_take_turns || p.tiles > kStages))) return;
    for (int64_t splits = p.batch_invariant ? most_splits : 1;;) {
      const int64_t time = cost(p, block, splits), tiles = ceil_div(p.tiles, splits);
      if (plan.block_heads == 0 || time < least) plan.block_heads = block.heads, plan.splits = splits, least = time;
      // On to the least number of parts that leaves a block fewer tiles.
      if (tiles <= 1 || takes_turns) return;
      splits = ceil_div(p.tiles, tiles - 1);
      if (splits > most_splits) return;
    }
  };
  if (p.format == KvFormat::fp8_ds_mla_v4) {
    for (const BlockCost& block : kV4Costs) consider(block);
  } else {
    for (const BlockCost& block : kMlaCosts) consider(block);
  }
  return plan;
}

}  // namespace strata::cuda::sparse_decode
