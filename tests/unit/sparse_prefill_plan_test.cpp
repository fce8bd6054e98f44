// How the Hopper kernels of sparse_attn_prefill deal tokens to blocks, without a GPU.
#include <gtest/gtest.h>

#include "backends/cuda/mqa_engine/plan.h"

namespace strata::cuda::sparse_prefill {
namespace {

TEST(SparsePrefillPlan, EveryTokenAndTileOnceInOneRoundOfBlocks) {
  for (const int64_t slots : {1, 39, 66, 132}) {
    for (int64_t tokens = 0; tokens <= 300; ++tokens) {
      for (int64_t tiles = 0; tiles <= 200; ++tiles) {
        const Plan p = plan(tokens, tiles, slots);
        const auto at = testing::Message() << tokens << " tokens of " << tiles << " tiles, " << slots << " slots";
        ASSERT_EQ(p.whole + p.cut, tokens) << at;
        if (p.cut == 0) continue;
        ASSERT_EQ(p.whole % slots, 0) << at;
        ASSERT_LE(p.cut * p.splits, slots) << at;
        ASSERT_GE(p.splits * p.tiles_per_split, tiles) << at;
        ASSERT_LT((p.splits - 1) * p.tiles_per_split, tiles) << at;  // none is empty of a token with all its rows
        ASSERT_LE(p.splits, kMaxSplits) << at;
        ASSERT_LT(p.tiles_per_split, tiles) << at;
        ASSERT_LE(p.cut * p.splits, max_splits(tokens, tiles, slots)) << at;
      }
    }
  }
}

// op.h: workspace_bytes must not shrink as tokens or rows grow.
TEST(SparsePrefillPlan, RoomNeverShrinks) {
  for (const int64_t slots : {1, 39, 66, 132}) {
    for (int64_t tokens = 0; tokens <= 300; ++tokens) {
      for (int64_t tiles = 0; tiles <= 200; ++tiles) {
        ASSERT_LE(max_splits(tokens, tiles, slots), max_splits(tokens + 1, tiles, slots)) << tokens << ", " << tiles << ", " << slots;
        ASSERT_LE(max_splits(tokens, tiles, slots), max_splits(tokens, tiles + 1, slots)) << tokens << ", " << tiles << ", " << slots;
      }
    }
  }
}

TEST(SparsePrefillPlan, ShapesOfTheModels) {
  EXPECT_EQ(plan(64, 10, 132).splits, 2);  // 64 tokens of 640 rows: two blocks each
  EXPECT_EQ(plan(132, 10, 132).cut, 0);    // a round
  EXPECT_EQ(plan(4096, 2, 132).cut, 0);    // the window alone: combining would cost more
  EXPECT_EQ(plan(4096, 32, 132).cut, 4);   // 31 rounds and four tokens
  EXPECT_EQ(plan(4096, 32, 132).whole, 4092);
  EXPECT_EQ(plan(4096, 10, 132).splits, 5);  // four tokens of 640 rows, in splits of two tiles
  EXPECT_EQ(plan(4096, 10, 66).cut, 0);      // of 62 rounds the last is too little
}

}  // namespace
}  // namespace strata::cuda::sparse_prefill
