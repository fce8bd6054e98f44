// How the Hopper kernel of dense_attn_prefill deals tiles of queries to blocks, without a GPU.
#include <gtest/gtest.h>

#include <vector>

#include "backends/cuda/sm90/dense_prefill/turns.h"

namespace strata::cuda::dense_prefill {
namespace {

TEST(DensePrefillTurns, EveryTileOnce) {
  for (int32_t tiles = 1; tiles <= 70; ++tiles) {
    for (const int32_t of_turn : {1, 2}) {
      std::vector<int> times(static_cast<size_t>(tiles));
      for (int32_t turn = 0; turn < turns_of_head(tiles, of_turn); ++turn) {
        for (int32_t part = 0; part < of_turn; ++part) {
          const int32_t tile = tile_of(tiles, turn, part);
          ASSERT_TRUE(tile >= -1 && tile < tiles) << tiles << " tiles, turn " << turn;
          if (tile >= 0) ++times[static_cast<size_t>(tile)];
        }
      }
      ASSERT_EQ(times, std::vector<int>(static_cast<size_t>(tiles), 1)) << tiles << " tiles, " << of_turn << " a turn";
    }
  }
}

TEST(DensePrefillTurns, TwoTilesSeeAsMuchAsAnyOtherTwo) {
  for (int32_t tiles = 2; tiles <= 70; tiles += 2) {
    for (int32_t turn = 0; turn < tiles / 2; ++turn) EXPECT_EQ(tile_of(tiles, turn, 0) + tile_of(tiles, turn, 1), tiles - 1);
  }
}

TEST(DensePrefillTurns, TwoWhereEveryBlockHasATurnEvenSo) {
  EXPECT_EQ(tiles_of_turn(true, 128, 8, 132), 2);
  EXPECT_EQ(tiles_of_turn(true, 16, 8, 132), 1);     // 64 turns of two for 132 blocks
  EXPECT_EQ(tiles_of_turn(false, 128, 32, 132), 1);  // all tiles see as much
  EXPECT_EQ(tiles_of_turn(true, 128, 1, 132), 1);
}

}  // namespace
}  // namespace strata::cuda::dense_prefill
