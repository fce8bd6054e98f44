// How a call's rows are shared out by its tokens' lengths, without a GPU.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "backends/cuda/sparse_attn_decode/sm90/schedule.h"

namespace strata::cuda::sparse_decode {
namespace {

constexpr int64_t kSms = 132, kWindow = 128;
constexpr KvFormat kV4 = KvFormat::fp8_ds_mla_v4;

Problem problem_of(int64_t tokens, int64_t heads, int64_t rows) {
  return {.tokens = tokens, .heads = heads, .tiles = ceil_div(rows, kRowTile), .num_sms = kSms, .format = kV4, .batch_invariant = false};
}

Schedule schedule_of(const Problem& p, std::span<const AttendedRows> rows) { return Schedule(p, *block_of_pieces(p), rows); }
bool is_far(const Problem& p) { return far_bound(p, block_of_pieces(p)); }

struct Written {
  std::vector<PieceRow> pieces;
  std::vector<MergeRow> merges;
  int64_t cut = 0;
};

Written write(const Problem& p, const std::vector<AttendedRows>& rows) {
  const Sizes sizes{p.tokens, most_further_pieces(p, block_of_pieces(p)->heads)};
  Written w{.pieces = std::vector<PieceRow>(static_cast<size_t>(sizes.pieces()), PieceRow{.token = 99, .part = 99}),
            .merges = std::vector<MergeRow>(static_cast<size_t>(sizes.merges()), MergeRow{.token = 99})};
  w.cut = schedule_of(p, rows).write(w.pieces, w.merges);
  return w;
}

// Each row of each token once; parts in their room and nobody else's; the largest piece first; nothing behind the last one.
void expect_whole(const Problem& p, const std::vector<AttendedRows>& rows, const Written& w) {
  std::vector<std::vector<PieceRow>> of_token(rows.size());
  int32_t last_rows = std::numeric_limits<int32_t>::max();
  bool ended = false;
  for (const PieceRow& piece : w.pieces) {
    ended = ended || piece.token < 0;
    ASSERT_EQ(ended, piece.token < 0);
    if (ended) continue;
    ASSERT_LT(piece.token, p.tokens);
    ASSERT_LE(piece.end_row - piece.first_row, last_rows);
    last_rows = piece.end_row - piece.first_row;
    of_token[static_cast<size_t>(piece.token)].push_back(piece);
  }
  std::vector<const MergeRow*> merge_of(rows.size(), nullptr);
  std::vector<bool> taken(static_cast<size_t>(2 * (std::ssize(w.pieces) - p.tokens)), false);
  int64_t cut = 0;
  for (const MergeRow& merge : w.merges) {
    if (merge.token < 0) continue;
    ASSERT_EQ(merge_of[static_cast<size_t>(merge.token)], nullptr);
    merge_of[static_cast<size_t>(merge.token)] = &merge;
    ++cut;
    for (int32_t i = 0; i < merge.parts; ++i) {
      ASSERT_LT(merge.first_part + i, std::ssize(taken));
      ASSERT_FALSE(taken[static_cast<size_t>(merge.first_part + i)]);
      taken[static_cast<size_t>(merge.first_part + i)] = true;
    }
  }
  EXPECT_EQ(w.cut, cut);
  for (size_t t = 0; t < rows.size(); ++t) {
    std::vector<PieceRow>& pieces = of_token[t];
    std::sort(pieces.begin(), pieces.end(), [](const PieceRow& a, const PieceRow& b) { return a.first_row < b.first_row; });
    ASSERT_FALSE(pieces.empty());
    ASSERT_EQ(pieces.size() > 1, merge_of[t] != nullptr);
    int32_t row = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      ASSERT_EQ(pieces[i].first_row, row);
      ASSERT_EQ(pieces[i].first_row % kRowTile, 0);
      ASSERT_TRUE(pieces[i].end_row > row || rows[t].all == 0);
      ASSERT_EQ(pieces[i].part, pieces.size() == 1 ? -1 : merge_of[t]->first_part + static_cast<int32_t>(i));
      ASSERT_EQ(pieces[i].main, rows[t].main);
      ASSERT_EQ(pieces[i].all, rows[t].all);
      row = pieces[i].end_row;
    }
    ASSERT_EQ(row, rows[t].all);
  }
}

AttendedRows token_of(int64_t compressed) { return {kWindow, static_cast<int32_t>(kWindow + compressed)}; }

TEST(SparseDecodeSchedule, HasEachRowOnce) {
  uint32_t state = 1;
  const auto random = [&](int64_t n) {
    state = state * 1664525u + 1013904223u;
    return static_cast<int64_t>(state >> 8) % n;
  };
  for (const int64_t heads : {1, 8, 9, 16, 33, 64, 128}) {
    for (const int64_t tokens : {1, 2, 3, 12, 32, 67, 132, 400}) {
      for (const int64_t width : {0, 100, 512, 1024, 8192}) {
        SCOPED_TRACE(testing::Message() << heads << " heads, " << tokens << " tokens, " << width << " compressed rows");
        std::vector<AttendedRows> rows;
        for (int64_t t = 0; t < tokens; ++t) {
          const int64_t main = random(4) == 0 ? random(kWindow + 1) : kWindow, extra = random(3) == 0 ? width : random(width / 8 + 1);
          rows.push_back({static_cast<int32_t>(main), static_cast<int32_t>(main + extra)});
        }
        if (random(3) == 0) rows[static_cast<size_t>(random(tokens))] = {0, 0};
        const Problem p = problem_of(tokens, heads, kWindow + width);
        expect_whole(p, rows, write(p, rows));
      }
    }
  }
}

// Whoever goes by a schedule knows from its size how many tokens are merged, and does not take one of a size that no schedule of the call
// has.
TEST(SparseDecodeSchedule, SizeTellsTheRowsOfMerges) {
  for (const Sizes& sizes : {Sizes{1, 0}, Sizes{1, 5}, Sizes{7, 3}, Sizes{40, 132}}) {
    for (int64_t merges = 0; merges <= sizes.merges(); ++merges) {
      EXPECT_EQ(sizes.merges_of(sizes.bytes_of(merges)), merges);
      EXPECT_EQ(sizes.merges_of(sizes.bytes_of(merges) + 8), -1);
    }
    EXPECT_EQ(sizes.merges_of(sizes.bytes_of(0) - 16), -1);
    EXPECT_EQ(sizes.merges_of(sizes.bytes() + 16), -1);
    EXPECT_EQ(sizes.bytes(), sizes.bytes_of(sizes.merges()));
  }
}

// op.h and the layers' plans: what a schedule's parts take is never more than what the call takes without one.
TEST(SparseDecodeSchedule, PartsHaveRoomInThatOfAPlan) {
  for (const int64_t heads : {1, 8, 16, 17, 33, 64, 65, 128}) {
    for (int64_t tokens = 1; tokens <= 300; ++tokens) {
      for (const int64_t tiles : {1, 2, 3, 10, 18, 66, 130}) {
        const Problem p = problem_of(tokens, heads, tiles * kRowTile);
        ASSERT_LE(2 * most_further_pieces(p, block_of_pieces(p)->heads), plan(p).most_parts)
            << tokens << " tokens, " << heads << " heads, " << tiles << " tiles";
      }
    }
  }
}

TEST(SparseDecodeSchedule, OneLongTokenIsSharedByManyBlocks) {
  for (const int64_t heads : {16, 64, 128}) {
    const Problem p = problem_of(32, heads, kWindow + 8192);
    std::vector<AttendedRows> rows(32, token_of(256));
    rows[7] = token_of(8192);
    EXPECT_TRUE(schedule_of(p, rows).is_faster()) << heads;
    EXPECT_LT(4 * schedule_of(p, rows).size().time, plan(p).time) << heads;
    const Written w = write(p, rows);
    expect_whole(p, rows, w);
    const auto merge = std::find_if(w.merges.begin(), w.merges.end(), [](const MergeRow& m) { return m.token == 7; });
    ASSERT_NE(merge, w.merges.end()) << heads;
    EXPECT_GT(merge->parts, 6) << heads;
  }
}

// A call of one length, whose bound tells it, is a plan's.
TEST(SparseDecodeSchedule, IsNotWorthItWhereAllAreAlike) {
  for (const int64_t heads : {8, 16, 64, 128}) {
    for (const int64_t tokens : {1, 8, 32, 64, 128}) {
      for (const int64_t compressed : {0, 128, 256, 512, 1024}) {
        const Problem p = problem_of(tokens, heads, kWindow + compressed);
        EXPECT_FALSE(schedule_of(p, std::vector<AttendedRows>(static_cast<size_t>(tokens), token_of(compressed))).is_faster())
            << tokens << " tokens, " << heads << " heads, " << compressed;
      }
    }
  }
}

TEST(SparseDecodeSchedule, ABoundAloneTellsWhetherACapturedStepHasOne) {
  EXPECT_TRUE(is_far(problem_of(32, 128, kWindow + 8192)));
  EXPECT_TRUE(is_far(problem_of(1, 16, kWindow + 1024)));
  EXPECT_FALSE(is_far(problem_of(32, 128, kWindow + 512)));
  EXPECT_FALSE(is_far(problem_of(2048, 128, kWindow + 8192)));  // many rounds of blocks
  for (const auto spoil : std::initializer_list<void (*)(Problem&)>{[](Problem& p) { p.format = KvFormat::fp8_ds_mla; },
                                                                    [](Problem& p) { p.batch_invariant = true; }}) {
    Problem p = problem_of(32, 128, kWindow + 8192);
    spoil(p);
    EXPECT_EQ(block_of_pieces(p), nullptr);
    EXPECT_FALSE(is_far(p));
  }
}

}  // namespace
}  // namespace strata::cuda::sparse_decode
