// How the Hopper kernels of sparse_attn_decode cut a call, without a GPU.
#include <gtest/gtest.h>

#include "backends/cuda/sm90/sparse_decode/plan.h"

namespace strata::cuda::sparse_decode {
namespace {

constexpr int64_t kSms = 132;

Plan plan_of(int64_t tokens, int64_t heads, int64_t tiles, bool batch_invariant, bool can_take_turns) {
  return plan({tokens, heads, tiles, kSms, batch_invariant, can_take_turns});
}

// op.h: what workspace_bytes counts must not shrink as tokens or rows grow, nor look at data, which can_take_turns does by its alignment.
TEST(SparseDecodePlan, RoomNeverShrinksAndDoesNotDependOnAlignment) {
  for (const bool invariant : {false, true}) {
    for (const int64_t heads : {1, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128}) {
      for (int64_t tiles = 1; tiles <= 40; ++tiles) {
        int64_t fewer_tokens = 0;
        for (int64_t tokens = 1; tokens <= 400; ++tokens) {
          const Plan plan = plan_of(tokens, heads, tiles, invariant, true);
          const auto at = testing::Message() << tokens << " tokens, " << heads << " heads, " << tiles << " tiles, invariant " << invariant;
          ASSERT_GE(plan.most_parts, fewer_tokens) << at;
          ASSERT_GE(plan.most_parts, tiles == 1 ? 0 : plan_of(tokens, heads, tiles - 1, invariant, true).most_parts) << at;
          ASSERT_EQ(plan.most_parts, plan_of(tokens, heads, tiles, invariant, false).most_parts) << at;
          fewer_tokens = plan.most_parts;
        }
      }
    }
  }
}

TEST(SparseDecodePlan, PartsHaveRoom) {
  for (const bool turns : {false, true}) {
    for (const int64_t heads : {8, 16, 32, 64, 128}) {
      for (int64_t tiles = 1; tiles <= 200; tiles += 3) {
        for (const int64_t tokens : {1, 2, 3, 8, 32, 66, 67, 128, 132, 133, 200, 256}) {
          for (const bool invariant : {false, true}) {
            const Plan plan = plan_of(tokens, heads, tiles, invariant, turns);
            ASSERT_LE(plan.splits > 1 ? tokens * plan.splits : 0, plan.most_parts)
                << tokens << " tokens, " << heads << " heads, " << tiles << " tiles";
          }
        }
      }
    }
  }
}

TEST(SparseDecodePlan, HeadsTakeTurnsWhereThatSavesARoundOfBlocks) {
  EXPECT_EQ(plan_of(128, 128, 2, false, true).block_heads, 2 * kHeadTile);
  EXPECT_EQ(plan_of(128, 128, 2, false, true).splits, 1);
  EXPECT_EQ(plan_of(128, 128, 2, false, false).block_heads, kHeadTile);  // the rows are not aligned
  EXPECT_EQ(plan_of(128, 128, 3, false, true).block_heads, kHeadTile);   // more rows than a block keeps
  EXPECT_EQ(plan_of(66, 128, 2, false, true).block_heads, kHeadTile);    // all blocks run at a time
  EXPECT_EQ(plan_of(128, 64, 2, false, true).block_heads, kHeadTile);
}

}  // namespace
}  // namespace strata::cuda::sparse_decode
