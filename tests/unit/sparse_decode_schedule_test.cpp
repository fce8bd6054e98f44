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

Schedule schedule_of(const Problem& p, std::span<const AttendedRows> rows) { return Schedule(p, *block_of_schedule(p), rows); }
bool is_far(const Problem& p) { return far_bound(p, block_of_schedule(p)); }

struct Written {
  std::vector<WorkItemRow> work_items;
  std::vector<CombineRow> combine_rows;
  int64_t cut = 0;
};

Written write(const Problem& p, const std::vector<AttendedRows>& rows) {
  const Sizes sizes{p.tokens, max_further_work_items(p, block_of_schedule(p)->heads)};
  Written w{.work_items = std::vector<WorkItemRow>(static_cast<size_t>(sizes.work_items()), WorkItemRow{.token = 99, .split = 99}),
            .combine_rows = std::vector<CombineRow>(static_cast<size_t>(sizes.combine_rows()), CombineRow{.token = 99})};
  w.cut = schedule_of(p, rows).write(w.work_items, w.combine_rows);
  return w;
}

// Each row of each token once; splits in their own room; the largest work item first; nothing after the last one.
void expect_whole(const Problem& p, const std::vector<AttendedRows>& rows, const Written& w) {
  std::vector<std::vector<WorkItemRow>> of_token(rows.size());
  int32_t last_rows = std::numeric_limits<int32_t>::max();
  bool ended = false;
  for (const WorkItemRow& work_item : w.work_items) {
    ended = ended || work_item.token < 0;
    ASSERT_EQ(ended, work_item.token < 0);
    if (ended) continue;
    ASSERT_LT(work_item.token, p.tokens);
    ASSERT_LE(work_item.end_row - work_item.first_row, last_rows);
    last_rows = work_item.end_row - work_item.first_row;
    of_token[static_cast<size_t>(work_item.token)].push_back(work_item);
  }
  std::vector<const CombineRow*> combine_row_of(rows.size(), nullptr);
  std::vector<bool> taken(static_cast<size_t>(2 * (std::ssize(w.work_items) - p.tokens)), false);
  int64_t cut = 0;
  for (const CombineRow& combine_row : w.combine_rows) {
    if (combine_row.token < 0) continue;
    ASSERT_EQ(combine_row_of[static_cast<size_t>(combine_row.token)], nullptr);
    combine_row_of[static_cast<size_t>(combine_row.token)] = &combine_row;
    ++cut;
    for (int32_t i = 0; i < combine_row.splits; ++i) {
      ASSERT_LT(combine_row.first_split + i, std::ssize(taken));
      ASSERT_FALSE(taken[static_cast<size_t>(combine_row.first_split + i)]);
      taken[static_cast<size_t>(combine_row.first_split + i)] = true;
    }
  }
  EXPECT_EQ(w.cut, cut);
  for (size_t t = 0; t < rows.size(); ++t) {
    std::vector<WorkItemRow>& work_items = of_token[t];
    std::sort(work_items.begin(), work_items.end(), [](const WorkItemRow& a, const WorkItemRow& b) { return a.first_row < b.first_row; });
    ASSERT_FALSE(work_items.empty());
    ASSERT_EQ(work_items.size() > 1, combine_row_of[t] != nullptr);
    int32_t row = 0;
    for (size_t i = 0; i < work_items.size(); ++i) {
      ASSERT_EQ(work_items[i].first_row, row);
      ASSERT_EQ(work_items[i].first_row % kRowTile, 0);
      ASSERT_TRUE(work_items[i].end_row > row || rows[t].all == 0);
      ASSERT_EQ(work_items[i].split, work_items.size() == 1 ? -1 : combine_row_of[t]->first_split + static_cast<int32_t>(i));
      ASSERT_EQ(work_items[i].main, rows[t].main);
      ASSERT_EQ(work_items[i].all, rows[t].all);
      row = work_items[i].end_row;
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

// The size of a schedule says how many tokens have splits to combine. An implementation refuses a size that no schedule of the call
// has.
TEST(SparseDecodeSchedule, SizeTellsTheRowsOfMerges) {
  for (const Sizes& sizes : {Sizes{1, 0}, Sizes{1, 5}, Sizes{7, 3}, Sizes{40, 132}}) {
    for (int64_t combine_rows = 0; combine_rows <= sizes.combine_rows(); ++combine_rows) {
      EXPECT_EQ(sizes.combine_rows_of(sizes.bytes_of(combine_rows)), combine_rows);
      EXPECT_EQ(sizes.combine_rows_of(sizes.bytes_of(combine_rows) + 8), -1);
    }
    EXPECT_EQ(sizes.combine_rows_of(sizes.bytes_of(0) - 16), -1);
    EXPECT_EQ(sizes.combine_rows_of(sizes.bytes() + 16), -1);
    EXPECT_EQ(sizes.bytes(), sizes.bytes_of(sizes.combine_rows()));
  }
}

// op.h and the layers' plans: a schedule's splits never take more than the call takes without a schedule.
TEST(SparseDecodeSchedule, PartsHaveRoomInThatOfAPlan) {
  for (const int64_t heads : {1, 8, 16, 17, 33, 64, 65, 128}) {
    for (int64_t tokens = 1; tokens <= 300; ++tokens) {
      for (const int64_t tiles : {1, 2, 3, 10, 18, 66, 130}) {
        const Problem p = problem_of(tokens, heads, tiles * kRowTile);
        ASSERT_LE(2 * max_further_work_items(p, block_of_schedule(p)->heads), plan(p).max_total_splits)
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
    const auto combine_row = std::find_if(w.combine_rows.begin(), w.combine_rows.end(), [](const CombineRow& m) { return m.token == 7; });
    ASSERT_NE(combine_row, w.combine_rows.end()) << heads;
    EXPECT_GT(combine_row->splits, 6) << heads;
  }
}

// A call in which all lengths equal the bound is cut by a plan.
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
    EXPECT_EQ(block_of_schedule(p), nullptr);
    EXPECT_FALSE(is_far(p));
  }
}

}  // namespace
}  // namespace strata::cuda::sparse_decode
