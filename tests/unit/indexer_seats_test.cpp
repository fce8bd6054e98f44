// How the warpgroups of Hopper's logits kernel share the tiles of a request's tokens, without a GPU.
#include "backends/cuda/indexer/sm90/seats.h"

#include <gtest/gtest.h>

#include <vector>

namespace strata::cuda::sm90 {
namespace {

TEST(IndexerSeats, EveryTokenHasOneSeatOfEachCopy) {
  for (const int of_seat : {1, 2}) {
    for (int tokens = 1; tokens <= kPrefillWarpgroups * of_seat; ++tokens) {
      const int seats = seats_of(tokens, of_seat), copies = copies_of(seats);
      EXPECT_LE(seats * copies, kPrefillWarpgroups) << tokens << " tokens";
      EXPECT_GT(2 * seats * copies, kPrefillWarpgroups) << tokens << " tokens: another copy finds room";
      std::vector<int> taken(static_cast<size_t>(seats * copies));
      for (int warpgroup = 0; warpgroup < kPrefillWarpgroups; ++warpgroup) {
        const int turn = turn_of(warpgroup, seats), seat = warpgroup - turn * seats;
        ASSERT_LE(turn, copies);
        if (turn == copies) continue;
        ASSERT_TRUE(seat >= 0 && seat < seats) << "warpgroup " << warpgroup << " of " << seats << " seats";
        ++taken[static_cast<size_t>(turn * seats + seat)];
      }
      EXPECT_EQ(taken, std::vector<int>(taken.size(), 1)) << tokens << " tokens, " << of_seat << " a seat";
    }
  }
}

TEST(IndexerSeats, EveryTileIsInOnePartOfTheWork) {
  for (int seats = 1; seats <= kPrefillWarpgroups; ++seats) {
    for (const int tiles : {1, 2, 7, 64, 1000}) {
      const int work = run_work(seats, tiles);
      EXPECT_EQ(tiles_in_work(seats, 0), 0);
      EXPECT_EQ(tiles_in_work(seats, kRunStart), 0);
      EXPECT_EQ(tiles_in_work(seats, work), tiles);
      EXPECT_LT(tiles_in_work(seats, work - kTileWork), tiles);
      for (int cut = 1; cut <= work; ++cut) {
        const int more = tiles_in_work(seats, cut) - tiles_in_work(seats, cut - 1);
        ASSERT_TRUE(more == 0 || more == 1) << seats << " seats, " << tiles << " tiles, cut at " << cut;
      }
    }
  }
}

}  // namespace
}  // namespace strata::cuda::sm90
