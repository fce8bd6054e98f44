// The blocks of a call, from what the host knows: shapes. The lengths are on the device (TokenRows).
#pragma once

#include <algorithm>

#include "backends/cuda/sparse_attn_decode/sm90/tile.h"
#include "core/ceil_div.h"
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
  bool raw_queries = false;                     // still to be normalised, for which persistent blocks have no registers
  int64_t largest_cluster = kMostClusterParts;  // blocks of few heads
};

struct Plan {
  int64_t block_heads;
  int64_t tiles_per_split = 0;  // as in DecodeArgs
  int64_t splits = 1;
  bool in_clusters = false;  // parts are merged by their blocks (cluster_merge.cuh, few_heads_merge.cuh)
  bool in_turn = false;      // as many blocks as SMs take one token after the other (few_heads_in_turn.cuh)
  int64_t most_parts = 0;    // of all tokens: room for them does not shrink as tokens or tiles grow
  int64_t time = 0;          // by the costs below
};

// What blocks of some heads take, in hundredths of a microsecond, fitted to calls of 8 to 128 heads, 128 to 8320 rows and 1 to 256
// tokens on an H200 (docs/kernels/20261121-sparse-decode.md). A call has the blocks whose time is shortest by these.
struct BlockCost {
  int64_t heads;
  int64_t start, tile;        // what a block does before and after its rows, and for each 64 of them
  int64_t crowd, tile_crowd;  // more with a block on every SM than with one on every second, which shares its way to memory with another
};
inline constexpr BlockCost kV4Costs[] = {{8, 282, 110, 140, 0}, {16, 375, 114, 100, 0}, {32, 520, 144, 95, 0}, {64, 590, 222, 225, 0}};
inline constexpr BlockCost kMlaCosts[] = {{8, 336, 100, 40, 15}, {16, 348, 118, 32, 24}, {32, 412, 144, 15, 12}, {64, 642, 212, 138, 21}};
// Merging parts by a kernel of its own, and by the blocks that have them.
inline constexpr int64_t kMerge = 168, kMergeOfPart = 3, kMergeOf1024Heads = 42;  // the last: heads of all parts of all tokens
inline constexpr int64_t kClusterMerge = 240, kFewHeadsMerge = 125, kFewHeadsMergeOfMany = 175, kFewHeadsMergeOfLarge = 145;

// Whether the blocks of a token's parts can be clusters: those of two blocks fill the SMs, larger ones do not all fit into the groups of
// SMs that a cluster has to be in (of few heads: of 5, 6 and 8 blocks 22, 17 and 15 on an H200).
inline bool in_clusters(const Problem& p, int64_t block_heads, int64_t splits) {
  const int64_t blocks = p.tokens * ceil_div(p.heads, block_heads) * splits;
  if (p.batch_invariant) return false;
  if (block_heads == kHeadTile) return splits == 2 ? blocks <= p.num_sms : splits == 3 && 4 * blocks <= 3 * p.num_sms;
  // Fewer parts a kernel merges as fast.
  return p.format == KvFormat::fp8_ds_mla_v4 && block_heads <= 16 && splits >= 4 && splits <= p.largest_cluster &&
         (splits <= kPortableCluster ? 13 * blocks <= 10 * p.num_sms : 8 * blocks <= 3 * p.num_sms);
}

// Of more than two rounds of blocks: rows are then on their way from one token to the next. Not where the same bits are asked for whatever
// else is in the batch.
inline bool in_turn(const Problem& p, int64_t block_heads, int64_t splits) {
  return !p.batch_invariant && !p.raw_queries && p.format == KvFormat::fp8_ds_mla_v4 && block_heads <= 16 && splits == 1 &&
         p.tokens * ceil_div(p.heads, block_heads) > 2 * p.num_sms;
}

inline int64_t merge_cost(const Problem& p, int64_t block_heads, int64_t splits) {
  if (splits == 1) return 0;
  if (!in_clusters(p, block_heads, splits)) {
    return kMerge + kMergeOfPart * splits + kMergeOf1024Heads * p.tokens * p.heads * splits / 1024;
  }
  if (block_heads == kHeadTile) return kClusterMerge;
  // With few clusters those of the next call find room beside them before they end.
  const int64_t blocks = p.tokens * ceil_div(p.heads, block_heads) * splits;
  return 8 * blocks > 3 * p.num_sms ? kFewHeadsMergeOfMany : splits > kPortableCluster ? kFewHeadsMergeOfLarge : kFewHeadsMerge;
}

inline int64_t cost(const Problem& p, const BlockCost& block, int64_t splits) {
  const int64_t tiles = ceil_div(p.tiles, splits), blocks = p.tokens * ceil_div(p.heads, block.heads) * splits;
  const int64_t rounds = ceil_div(blocks, p.num_sms), crowd = block.crowd + tiles * block.tile_crowd;
  const int64_t shared_ways = std::min(std::max<int64_t>(2 * blocks - p.num_sms, 0), p.num_sms);
  return rounds * (block.start + tiles * block.tile) + rounds * crowd * shared_ways / p.num_sms + merge_cost(p, block.heads, splits);
}

inline Plan plan(const Problem& p) {
  Plan plan{.block_heads = 0};
  int64_t most_splits = p.tiles;
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
    const bool too_many = block.heads > 8 && 2 * p.heads <= block.heads,
               too_few = p.batch_invariant && block.heads < std::min<int64_t>(p.heads, kHeadTile);
    if (too_many || too_few) return;
    for (int64_t splits = p.batch_invariant ? most_splits : 1;;) {
      const int64_t time = cost(p, block, splits), tiles = ceil_div(p.tiles, splits);
      if (plan.block_heads == 0 || time < plan.time) plan.block_heads = block.heads, plan.splits = splits, plan.time = time;
      // On to the least number of parts that leaves a block fewer tiles.
      if (tiles <= 1) return;
      splits = ceil_div(p.tiles, tiles - 1);
      if (splits > most_splits) return;
    }
  };
  if (p.format == KvFormat::fp8_ds_mla_v4) {
    for (const BlockCost& block : kV4Costs) consider(block);
  } else {
    for (const BlockCost& block : kMlaCosts) consider(block);
  }
  plan.in_clusters = in_clusters(p, plan.block_heads, plan.splits);
  plan.in_turn = in_turn(p, plan.block_heads, plan.splits);
  return plan;
}

}  // namespace strata::cuda::sparse_decode
