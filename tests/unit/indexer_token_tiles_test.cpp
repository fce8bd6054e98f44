// How the warpgroups of Hopper's logits kernel share the tiles of a request's tokens, without a GPU.
#include "backends/cuda/indexer/sm90/token_tiles.h"

#include <gtest/gtest.h>

#include <vector>

namespace strata::cuda::sm90 {
namespace {

TEST(IndexerTokenTiles, EveryTokenHasOneTileOfEachCopy) {
  for (const int tile_tokens : {1, 2}) {
    for (int tokens = 1; tokens <= kPrefillWarpgroups * tile_tokens; ++tokens) {
      const int token_tiles = num_token_tiles(tokens, tile_tokens), copies = copies_of(token_tiles);
      EXPECT_LE(token_tiles * copies, kPrefillWarpgroups) << tokens << " tokens";
      EXPECT_GT(2 * token_tiles * copies, kPrefillWarpgroups) << tokens << " tokens: another copy finds room";
      std::vector<int> taken(static_cast<size_t>(token_tiles * copies));
      for (int warpgroup = 0; warpgroup < kPrefillWarpgroups; ++warpgroup) {
        const int copy = copy_of(warpgroup, token_tiles), token_tile = warpgroup - copy * token_tiles;
        ASSERT_LE(copy, copies);
        if (copy == copies) continue;
        ASSERT_TRUE(token_tile >= 0 && token_tile < token_tiles) << "warpgroup " << warpgroup << " of " << token_tiles << " token tiles";
        ++taken[static_cast<size_t>(copy * token_tiles + token_tile)];
      }
      EXPECT_EQ(taken, std::vector<int>(taken.size(), 1)) << tokens << " tokens, " << tile_tokens << " a token tile";
    }
  }
}

TEST(IndexerTokenTiles, EveryTileIsInOneShareOfTheWork) {
  for (int token_tiles = 1; token_tiles <= kPrefillWarpgroups; ++token_tiles) {
    for (const int tiles : {1, 2, 7, 64, 1000}) {
      const int work = run_work(token_tiles, tiles);
      EXPECT_EQ(tiles_in_work(token_tiles, 0), 0);
      EXPECT_EQ(tiles_in_work(token_tiles, kRunStartWork), 0);
      EXPECT_EQ(tiles_in_work(token_tiles, work), tiles);
      EXPECT_LT(tiles_in_work(token_tiles, work - kTileWork), tiles);
      for (int cut = 1; cut <= work; ++cut) {
        const int more = tiles_in_work(token_tiles, cut) - tiles_in_work(token_tiles, cut - 1);
        ASSERT_TRUE(more == 0 || more == 1) << token_tiles << " token tiles, " << tiles << " tiles, cut at " << cut;
      }
    }
  }
}

}  // namespace
}  // namespace strata::cuda::sm90
