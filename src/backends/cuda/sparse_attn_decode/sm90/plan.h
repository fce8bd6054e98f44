// Selects the kernel and the CTAs of a call from what the host knows: shapes. The lengths are on the device (TokenRows).
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "backends/cuda/sparse_attn_decode/sm90/tile.h"
#include "core/ceil_div.h"
#include "strata/kv_format.h"

namespace strata::cuda::sparse_decode {

// A batch-invariant call cuts every token's rows at the same positions, whatever else is in the batch: 2048 rows per split.
inline constexpr int64_t kInvariantTiles = 32;

// What planning depends on.
struct Problem {
  int64_t tokens, heads;
  int64_t tiles;  // of a token's rows, if every entry is inside its length
  int64_t num_sms;
  KvFormat format;
  bool batch_invariant;
  bool raw_queries = false;                     // queries are not normalised yet; the persistent kernel has no registers for that
  int64_t largest_cluster = kMaxClusterSplits;  // CTAs with few heads
  friend bool operator==(const Problem&, const Problem&) = default;
};

// few_heads: CTAs of up to 32 heads (few_heads.cuh). h64: CTAs of 64 heads (kernel.cuh). Splits are combined by a separate kernel, or with
// _clusters by the CTAs that computed them (cluster_combine.cuh, few_heads_combine.cuh). persistent: one CTA per SM processes tokens one
// after the other (few_heads_persistent.cuh).
enum class Kernel : uint8_t { persistent, few_heads_clusters, few_heads, h64_clusters, h64 };
// As in the names of implementations: "cuda/sm90_few_heads".
inline std::string_view name_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::persistent: return "persistent";
    case Kernel::few_heads_clusters: return "few_heads_clusters";
    case Kernel::few_heads: return "few_heads";
    case Kernel::h64_clusters: return "h64_clusters";
    case Kernel::h64: break;
  }
  return "h64";
}
inline constexpr Kernel kKernels[] = {Kernel::persistent, Kernel::few_heads_clusters, Kernel::few_heads, Kernel::h64_clusters, Kernel::h64};

struct Plan {
  int64_t block_heads = 0;      // heads of a CTA; 0: no plan
  int64_t tiles_per_split = 0;  // as in DecodeArgs
  int64_t splits = 1;
  int64_t max_total_splits = 0;  // of all tokens; this room does not shrink as tokens or tiles grow
  int64_t time = 0;              // by the costs below, in hundredths of a microsecond
};
// The fastest plan of every kernel, and the fastest kernel.
struct Plans {
  Plan of[std::size(kKernels)];
  Kernel fastest = Kernel::h64;
  const Plan& plan(Kernel kernel) const { return of[static_cast<size_t>(kernel)]; }
  const Plan& best() const { return plan(fastest); }
};

// Time of CTAs with a number of heads, in hundredths of a microsecond. Fitted to times of calls on an H200: 8 to 128 heads, 128 to 8320
// rows, 1 to 256 tokens. A plan minimises `cost`, the sum of these. A changed kernel needs new figures.
struct BlockCost {
  int64_t heads;
  int64_t start, tile;        // per CTA, before and after its rows; per 64 rows
  int64_t crowd, tile_crowd;  // added with a CTA on every SM instead of every second one, which shares its memory path with another SM
};
inline constexpr BlockCost kV4Costs[] = {{8, 282, 110, 140, 0}, {16, 375, 114, 100, 0}, {32, 520, 144, 95, 0}, {64, 590, 222, 225, 0}};
inline constexpr BlockCost kMlaCosts[] = {{8, 336, 100, 40, 15}, {16, 348, 118, 32, 24}, {32, 412, 144, 15, 12}, {64, 642, 212, 138, 21}};
// Combining splits by a separate kernel, and by the CTAs of a cluster.
inline constexpr int64_t kCombine = 168, kCombinePerSplit = 3,
                         kCombinePer1024Heads = 42;  // the last: per 1024 heads of all splits of all tokens
inline constexpr int64_t kClusterCombine = 240, kFewHeadsCombine = 125, kFewHeadsCombineOfMany = 175, kFewHeadsCombineOfLarge = 145;

// Whether the CTAs of a token's splits can form clusters. Clusters of two CTAs fill the SMs. Larger clusters do not all fit into the GPCs,
// in which a cluster must lie (few heads: of 5, 6 and 8 CTAs 22, 17 and 15 clusters fit on an H200).
inline bool in_clusters(const Problem& p, int64_t block_heads, int64_t splits) {
  const int64_t blocks = p.tokens * ceil_div(p.heads, block_heads) * splits;
  if (p.batch_invariant) return false;
  if (block_heads == kHeadTile) return splits == 2 ? blocks <= p.num_sms : splits == 3 && 4 * blocks <= 3 * p.num_sms;
  // For fewer splits a separate kernel combines as fast.
  return p.format == KvFormat::fp8_ds_mla_v4 && block_heads <= 16 && splits >= 4 && splits <= p.largest_cluster &&
         (splits <= kPortableCluster ? 13 * blocks <= 10 * p.num_sms : 8 * blocks <= 3 * p.num_sms);
}

// The persistent kernel, for more than two waves of CTAs: loads of the next token overlap the current one. Not for batch-invariant calls.
inline bool is_persistent(const Problem& p, int64_t block_heads, int64_t splits) {
  return !p.batch_invariant && !p.raw_queries && p.format == KvFormat::fp8_ds_mla_v4 && block_heads <= 16 && splits == 1 &&
         p.tokens * ceil_div(p.heads, block_heads) > 2 * p.num_sms;
}

inline int64_t combine_cost(const Problem& p, int64_t block_heads, int64_t splits) {
  if (splits == 1) return 0;
  if (!in_clusters(p, block_heads, splits)) {
    return kCombine + kCombinePerSplit * splits + kCombinePer1024Heads * p.tokens * p.heads * splits / 1024;
  }
  if (block_heads == kHeadTile) return kClusterCombine;
  // With few clusters, the clusters of the next call fit before these end.
  const int64_t blocks = p.tokens * ceil_div(p.heads, block_heads) * splits;
  return 8 * blocks > 3 * p.num_sms ? kFewHeadsCombineOfMany : splits > kPortableCluster ? kFewHeadsCombineOfLarge : kFewHeadsCombine;
}

inline int64_t cost(const Problem& p, const BlockCost& block, int64_t splits) {
  const int64_t tiles = ceil_div(p.tiles, splits), blocks = p.tokens * ceil_div(p.heads, block.heads) * splits;
  const int64_t rounds = ceil_div(blocks, p.num_sms), crowd = block.crowd + tiles * block.tile_crowd;
  const int64_t shared_ways = std::min(std::max<int64_t>(2 * blocks - p.num_sms, 0), p.num_sms);
  return rounds * (block.start + tiles * block.tile) + rounds * crowd * shared_ways / p.num_sms + combine_cost(p, block.heads, splits);
}

inline Kernel kernel_of(const Problem& p, int64_t block_heads, int64_t splits) {
  const bool few = block_heads < kHeadTile;
  if (in_clusters(p, block_heads, splits)) return few ? Kernel::few_heads_clusters : Kernel::h64_clusters;
  if (is_persistent(p, block_heads, splits)) return Kernel::persistent;
  return few ? Kernel::few_heads : Kernel::h64;
}

inline std::span<const BlockCost> block_costs(const Problem& p) {
  return p.format == KvFormat::fp8_ds_mla_v4 ? std::span<const BlockCost>(kV4Costs) : std::span<const BlockCost>(kMlaCosts);
}

// What all plans of a call have in common, and the maximum number of splits per token.
inline Plan common_plan(const Problem& p, int64_t& max_splits) {
  Plan common;
  max_splits = p.tiles;
  if (p.batch_invariant) {
    common.tiles_per_split = kInvariantTiles;
    max_splits = std::max<int64_t>(ceil_div(p.tiles, kInvariantTiles), 1);
    if (max_splits > 1) common.max_total_splits = p.tokens * max_splits;
  } else if (p.tiles > 1) {
    // At most two waves of CTAs of 64 heads: this bounds the workspace.
    common.max_total_splits = std::min(p.tokens * p.tiles, 2 * p.num_sms / ceil_div(p.heads, kHeadTile));
    max_splits = common.max_total_splits / std::max<int64_t>(p.tokens, 1);
  }
  return common;
}

inline Plans plans(const Problem& p) {
  int64_t max_splits = 0;
  const Plan common = common_plan(p, max_splits);
  Plans plans;
  for (Plan& plan : plans.of) plan = common;
  for (const BlockCost& block : block_costs(p)) {
    const bool too_many = block.heads > 8 && 2 * p.heads <= block.heads,
               too_few = p.batch_invariant && block.heads < std::min<int64_t>(p.heads, kHeadTile);
    if (too_many || too_few) continue;
    for (int64_t splits = p.batch_invariant ? max_splits : 1;;) {
      const int64_t time = cost(p, block, splits), tiles = ceil_div(p.tiles, splits);
      const Kernel kernel = kernel_of(p, block.heads, splits);
      const bool fastest = plans.best().block_heads == 0 || time < plans.best().time;
      Plan& plan = plans.of[static_cast<size_t>(kernel)];
      if (plan.block_heads == 0 || time < plan.time) plan.block_heads = block.heads, plan.splits = splits, plan.time = time;
      if (fastest) plans.fastest = kernel;
      // Continue with the smallest number of splits that leaves a CTA fewer tiles.
      if (tiles <= 1) break;
      splits = ceil_div(p.tiles, tiles - 1);
      if (splits > max_splits) break;
    }
  }
  return plans;
}
inline Plan plan(const Problem& p) { return plans(p).best(); }

// Why a kernel cannot run a call; empty if it can.
inline std::string refusal(const Problem& p, Kernel kernel) {
  const bool few = kernel == Kernel::persistent || kernel == Kernel::few_heads_clusters;
  if (few && p.format != KvFormat::fp8_ds_mla_v4) return "needs caches of fp8_ds_mla_v4";
  if (kernel == Kernel::few_heads || kernel == Kernel::h64) return {};
  if (p.batch_invariant) return "does not cut rows as a batch-invariant call asks";
  if (kernel == Kernel::persistent) return p.raw_queries ? "has no registers to normalise queries" : "";
  const int64_t least = kernel == Kernel::few_heads_clusters ? 4 : 2;
  return p.tiles < least ? "needs rows for a cluster of " + std::to_string(least) : "";
}

// A plan for a kernel that can run the call, whatever its time: the fastest one. If the rules above give the kernel none, the first plan
// that the kernel can run. That plan depends on no other token.
inline Plan plan_of(const Problem& p, const Plans& plans, Kernel kernel) {
  if (plans.plan(kernel).block_heads > 0) return plans.plan(kernel);
  int64_t max_splits = 0;
  Plan plan = common_plan(p, max_splits);
  const bool few = kernel != Kernel::h64 && kernel != Kernel::h64_clusters;
  const int64_t largest = !few ? kHeadTile : kernel == Kernel::few_heads ? 32 : 16;
  plan.block_heads = few ? std::min<int64_t>(largest, p.heads <= 8 ? 8 : p.heads <= 16 ? 16 : 32) : largest;
  plan.splits = kernel == Kernel::few_heads_clusters ? 4 : kernel == Kernel::h64_clusters ? 2 : p.batch_invariant ? max_splits : 1;
  for (const BlockCost& block : block_costs(p)) {
    if (block.heads == plan.block_heads) plan.time = cost(p, block, plan.splits);
  }
  return plan;
}

}  // namespace strata::cuda::sparse_decode
