// How the Hopper kernel of dense_attn_prefill deals tiles of queries to blocks, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
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

TEST(DensePrefillTurns, EveryTurnOnce) {
  for (const int32_t blocks : {1, 2, 7, 132}) {
    for (int32_t turns = 1; turns <= 3 * blocks + 1; ++turns) {
      for (const int32_t of_turn : {1, 2}) {
        std::vector<int> times(static_cast<size_t>(turns));
        for (int32_t round = 0; round * blocks < turns; ++round) {
          for (int32_t block = 0; block < blocks; ++block) {
            const int32_t turn = turn_of_round(round, blocks, block, of_turn);
            ASSERT_GE(turn, 0);
            if (turn < turns) ++times[static_cast<size_t>(turn)];
          }
        }
        ASSERT_EQ(times, std::vector<int>(static_cast<size_t>(turns), 1)) << turns << " turns of " << blocks << " blocks";
      }
    }
  }
}

// Tiles of keys of the block that has most.
int64_t longest(int32_t heads, int32_t tiles, int32_t blocks, int32_t of_turn) {
  std::vector<int64_t> sums(static_cast<size_t>(blocks));
  const int32_t group = std::gcd(heads, 8), of_head = static_cast<int32_t>(turns_of_head(tiles, of_turn)), turns = heads * of_head;
  for (int32_t round = 0; round * blocks < turns; ++round) {
    for (int32_t block = 0; block < blocks; ++block) {
      const int32_t turn = turn_of_round(round, blocks, block, of_turn);
      for (int32_t part = 0; turn < turns && part < of_turn; ++part) {
        sums[static_cast<size_t>(block)] += tile_of(tiles, turn % (group * of_head) / group, part) + 1;
      }
    }
  }
  return *std::max_element(sums.begin(), sums.end());
}

// Of the two ways the one whose longest block is shorter, or hardly longer.
TEST(DensePrefillTurns, TheChoiceIsHardlyWorseThanTheOther) {
  constexpr int32_t kBlocks = 132;
  for (const int32_t heads : {8, 16, 32, 64, 128}) {
    for (int32_t tiles = 2; tiles <= 64; ++tiles) {
      const int32_t chosen = tiles_of_turn(true, heads, tiles, kBlocks);
      EXPECT_LE(longest(heads, tiles, kBlocks, chosen), 1.34 * static_cast<double>(longest(heads, tiles, kBlocks, 3 - chosen)))
          << heads << " heads, " << tiles << " tiles, " << chosen << " a turn";
    }
  }
}

TEST(DensePrefillTurns, TwoWhereTheyFillRounds) {
  EXPECT_EQ(tiles_of_turn(true, 128, 8, 132), 2);
  EXPECT_EQ(tiles_of_turn(true, 16, 8, 132), 1);     // 64 turns of two for 132 blocks
  EXPECT_EQ(tiles_of_turn(true, 16, 17, 132), 1);    // 144
  EXPECT_EQ(tiles_of_turn(false, 128, 32, 132), 1);  // all tiles see as much
  EXPECT_EQ(tiles_of_turn(true, 128, 1, 132), 1);
  EXPECT_EQ(tiles_of_turn(true, 0, 8, 132), 1);
}

}  // namespace
}  // namespace strata::cuda::dense_prefill
