// How the Hopper kernels of sparse_attn_decode cut a call, without a GPU.
#include <gtest/gtest.h>

#include "backends/cuda/sparse_attn_decode/sm90/plan.h"

namespace strata::cuda::sparse_decode {
namespace {

constexpr int64_t kSms = 132;
constexpr KvFormat kV4 = KvFormat::fp8_ds_mla_v4, kMla = KvFormat::fp8_ds_mla;

Plan plan_of(int64_t tokens, int64_t heads, int64_t tiles, bool batch_invariant, KvFormat format = kV4) {
  return plan({tokens, heads, tiles, kSms, format, batch_invariant});
}
Kernel kernel_of(int64_t tokens, int64_t heads, int64_t tiles, bool batch_invariant, KvFormat format = kV4) {
  return plans({tokens, heads, tiles, kSms, format, batch_invariant}).fastest;
}

// op.h: what workspace_bytes counts must not shrink as tokens or rows grow.
TEST(SparseDecodePlan, RoomNeverShrinks) {
  for (const bool invariant : {false, true}) {
    for (const int64_t heads : {1, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128}) {
      for (int64_t tiles = 1; tiles <= 40; ++tiles) {
        int64_t fewer_tokens = 0;
        for (int64_t tokens = 1; tokens <= 400; ++tokens) {
          const Plan plan = plan_of(tokens, heads, tiles, invariant);
          const auto at = testing::Message() << tokens << " tokens, " << heads << " heads, " << tiles << " tiles, invariant " << invariant;
          ASSERT_GE(plan.max_total_splits, fewer_tokens) << at;
          ASSERT_GE(plan.max_total_splits, tiles == 1 ? 0 : plan_of(tokens, heads, tiles - 1, invariant).max_total_splits) << at;
          fewer_tokens = plan.max_total_splits;
        }
      }
    }
  }
}

TEST(SparseDecodePlan, PartsHaveRoomAndRows) {
  for (const KvFormat format : {kV4, kMla}) {
    for (const int64_t heads : {1, 8, 16, 24, 32, 48, 64, 128}) {
      for (int64_t tiles = 1; tiles <= 200; tiles += 3) {
        for (const int64_t tokens : {1, 2, 3, 8, 32, 66, 67, 128, 132, 133, 200, 256, 1000}) {
          for (const bool invariant : {false, true}) {
            const Plan plan = plan_of(tokens, heads, tiles, invariant, format);
            const auto at = testing::Message() << tokens << " tokens, " << heads << " heads, " << tiles << " tiles, invariant "
                                               << invariant;
            ASSERT_LE(plan.splits > 1 ? tokens * plan.splits : 0, plan.max_total_splits) << at;
            ASSERT_LT((plan.splits - 1) * ceil_div(tiles, plan.splits), tiles) << at;
          }
        }
      }
    }
  }
}

// Persistent blocks do not normalise queries, and room for splits does not depend on it.
TEST(SparseDecodePlan, RawQueriesTakeNoPersistentBlocks) {
  int64_t persistent = 0;
  for (const int64_t heads : {1, 8, 16, 32, 64, 100, 128}) {
    for (const int64_t tiles : {1, 2, 3, 10}) {
      for (const int64_t tokens : {1, 32, 66, 67, 128, 300, 1000}) {
        Problem problem{tokens, heads, tiles, kSms, kV4, false};
        const Plans normed = plans(problem);
        persistent += normed.fastest == Kernel::persistent ? 1 : 0;
        problem.raw_queries = true;
        const Plans raw = plans(problem);
        EXPECT_NE(raw.fastest, Kernel::persistent) << tokens << " tokens, " << heads << " heads, " << tiles << " tiles";
        EXPECT_EQ(raw.best().max_total_splits, normed.best().max_total_splits);
      }
    }
  }
  EXPECT_GT(persistent, 0);
}

// A batch-invariant call is cut by its heads and rows alone.
TEST(SparseDecodePlan, BatchInvariantCallsAreCutAlikeWhateverTheBatch) {
  for (const KvFormat format : {kV4, kMla}) {
    for (const int64_t heads : {1, 8, 9, 16, 17, 32, 33, 64, 65, 128}) {
      for (const int64_t tiles : {1, 2, 10, 32, 33, 130}) {
        const Plan alone = plan_of(1, heads, tiles, true, format);
        EXPECT_GE(alone.block_heads, std::min<int64_t>(heads, kHeadTile));
        for (const int64_t tokens : {2, 9, 66, 67, 300}) {
          const Plan plan = plan_of(tokens, heads, tiles, true, format);
          EXPECT_EQ(plan.block_heads, alone.block_heads);
          EXPECT_EQ(plan.splits, alone.splits);
          EXPECT_EQ(plan.tiles_per_split, kInvariantTiles);
        }
      }
    }
  }
}

TEST(SparseDecodePlan, ClustersMergeWhereTheyAllFit) {
  const Plan two = plan_of(64, 64, 18, false);
  EXPECT_EQ(two.splits, 2);
  EXPECT_EQ(kernel_of(64, 64, 18, false), Kernel::h64_clusters);
  EXPECT_EQ(kernel_of(64, 64, 64, true), Kernel::h64);
  EXPECT_EQ(kernel_of(1, 64, 10, false), Kernel::few_heads_clusters);
  EXPECT_EQ(kernel_of(1, 64, 10, false, kMla), Kernel::few_heads);
  for (const int64_t heads : {8, 33, 64, 128}) {
    for (int64_t tiles = 1; tiles <= 130; ++tiles) {
      for (int64_t tokens = 1; tokens <= 140; ++tokens) {
        const Plan plan = plan_of(tokens, heads, tiles, false);
        const Kernel kernel = kernel_of(tokens, heads, tiles, false);
        if (kernel != Kernel::h64_clusters && kernel != Kernel::few_heads_clusters) continue;
        const int64_t blocks = tokens * ceil_div(heads, plan.block_heads) * plan.splits;
        if (plan.block_heads == kHeadTile) {
          ASSERT_TRUE(plan.splits == 2 || plan.splits == 3);
          ASSERT_LE(blocks, plan.splits == 2 ? kSms : kSms * 3 / 4);
        } else {
          ASSERT_LE(plan.block_heads, 16);
          ASSERT_LE(plan.splits, kMaxClusterSplits);
          ASSERT_LE(blocks, kSms * 10 / 13);
        }
      }
    }
  }
}

TEST(SparseDecodePlan, ManyTokensOfFewHeadsHavePersistentBlocks) {
  EXPECT_EQ(kernel_of(2048, 16, 10, false), Kernel::persistent);
  EXPECT_EQ(kernel_of(2048, 8, 18, false), Kernel::persistent);
  EXPECT_NE(kernel_of(264, 16, 10, false), Kernel::persistent);  // two rounds of blocks
  EXPECT_NE(kernel_of(2048, 16, 10, true), Kernel::persistent);
  EXPECT_NE(kernel_of(2048, 16, 10, false, kMla), Kernel::persistent);
  EXPECT_NE(kernel_of(2048, 32, 10, false), Kernel::persistent);
}

// The rule: a plan takes at most 3 % longer than the fastest combination of heads per CTA and splits. These were measured on an H200.
TEST(SparseDecodePlan, BlocksHaveAsManyHeadsAndRowsAsWasMeasuredBest) {
  struct Best {
    KvFormat format;
    int64_t heads, rows, tokens, block_heads, splits;
  };
  for (const Best& b : std::initializer_list<Best>{
           {kV4, 64, 640, 1, 8, 5},      {kV4, 64, 640, 4, 16, 5},      {kV4, 32, 640, 1, 8, 10},     {kV4, 64, 384, 1, 8, 6},
           {kV4, 64, 640, 8, 16, 4},     {kV4, 64, 640, 64, 32, 1},     {kV4, 64, 1152, 8, 16, 4},    {kV4, 64, 1152, 32, 32, 2},
           {kV4, 64, 640, 128, 64, 1},   {kV4, 64, 1152, 256, 64, 1},   {kV4, 64, 128, 8, 8, 1},      {kV4, 64, 128, 32, 16, 1},
           {kV4, 64, 128, 64, 32, 1},    {kV4, 128, 1152, 1, 16, 6},    {kV4, 128, 1152, 2, 16, 6},   {kV4, 128, 1152, 64, 64, 1},
           {kV4, 128, 1152, 12, 32, 2},  {kV4, 128, 1152, 16, 32, 2},   {kV4, 128, 1152, 32, 64, 2},  {kV4, 128, 1152, 20, 64, 3},
           {kV4, 128, 8320, 1, 32, 33},  {kV4, 128, 8320, 32, 64, 2},   {kMla, 64, 2048, 1, 16, 16},  {kMla, 128, 2048, 2, 32, 16},
           {kMla, 128, 2048, 32, 64, 2}, {kMla, 128, 2048, 128, 64, 1}, {kMla, 128, 2048, 3, 32, 11}, {kMla, 128, 2048, 4, 32, 8},
           {kMla, 128, 2048, 8, 32, 4},  {kMla, 64, 2048, 8, 32, 8},    {kMla, 32, 2048, 1, 16, 32},  {kMla, 64, 2048, 6, 32, 11},
           {kMla, 128, 2048, 6, 32, 5},  {kMla, 128, 2048, 10, 32, 3},  {kMla, 64, 2048, 12, 32, 5},  {kMla, 128, 512, 2, 16, 8},
       }) {
    const Plan plan = plan_of(b.tokens, b.heads, ceil_div(b.rows, kRowTile), false, b.format);
    const auto at = testing::Message() << b.tokens << " tokens, " << b.heads << " heads, " << b.rows << " rows";
    EXPECT_EQ(plan.block_heads, b.block_heads) << at;
    EXPECT_EQ(plan.splits, b.splits) << at;
  }
}

}  // namespace
}  // namespace strata::cuda::sparse_decode
