// How the rows of all sequences are shared out to the blocks of dense decode, without a GPU.
#include "backends/cuda/dense_attn_decode/sm90/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace strata::cuda::dense_decode {
namespace {

struct RangeSplit {
  int32_t sequence, first, end;  // tiles
};

// What the blocks work out, one after the other.
class Call {
 public:
  Call(std::vector<int32_t> tiles, int32_t work_ranges) : tiles_(std::move(tiles)) {
    const int32_t all = std::accumulate(tiles_.begin(), tiles_.end(), 0);
    const auto some = static_cast<int32_t>(std::count_if(tiles_.begin(), tiles_.end(), [](int32_t t) { return t > 0; }));
    const int32_t longest = tiles_.empty() ? 0 : *std::max_element(tiles_.begin(), tiles_.end());
    partition_ = Partition(all, longest, some, work_ranges);
    int32_t position = 0;
    for (const int32_t t : tiles_) {
      positions_.push_back(position);
      position += partition_.length(t);
    }
    length_ = position;
  }
  const Partition& partition() const { return partition_; }
  int32_t position(int32_t s) const { return positions_[static_cast<size_t>(s)]; }
  int32_t tiles(int32_t s) const { return tiles_[static_cast<size_t>(s)]; }
  int32_t length() const { return length_; }

  std::vector<RangeSplit> range_splits(int32_t work_range) const {
    std::vector<RangeSplit> result;
    const auto [first, first_tile] = cut(work_range);
    const auto [last, end_tile] = cut(work_range + 1);
    for (int32_t s = first; s < (end_tile > 0 ? last + 1 : last); ++s) {
      const RangeSplit p{s, s == first ? first_tile : 0, s == last ? end_tile : tiles(s)};
      if (p.end > p.first) result.push_back(p);
    }
    return result;
  }

 private:
  struct Cut {
    int32_t sequence, tile;
  };
  Cut cut(int32_t work_range) const {
    for (int32_t s = 0; s < static_cast<int32_t>(tiles_.size()); ++s) {
      const int32_t at = partition_.begin(work_range) - position(s);
      if (at >= 0 && at < partition_.length(tiles(s))) return {s, partition_.tiles_before(at, tiles(s))};
    }
    return {static_cast<int32_t>(tiles_.size()), 0};
  }

  std::vector<int32_t> tiles_, positions_;
  int32_t length_ = 0;
  Partition partition_{};
};

void expect_whole(const std::vector<int32_t>& tiles, int32_t work_ranges) {
  const Call call(tiles, work_ranges);
  EXPECT_LE(call.length(), call.partition().begin(work_ranges)) << "the line ends with the last work range";
  std::vector<int32_t> done(tiles.size());
  std::vector<std::vector<int32_t>> work_ranges_of(tiles.size());
  for (int32_t work_range = 0; work_range < work_ranges; ++work_range) {
    int begun_before = 0, cut_by_end = 0;
    for (const RangeSplit& p : call.range_splits(work_range)) {
      const auto s = static_cast<size_t>(p.sequence);
      ASSERT_EQ(p.first, done[s]) << "sequence " << s << ", work range " << work_range;
      done[s] = p.end;
      work_ranges_of[s].push_back(work_range);
      begun_before += p.first > 0 ? 1 : 0;
      cut_by_end += p.first == 0 && p.end < tiles[s] ? 1 : 0;
    }
    // Each has one slot for its partial result.
    EXPECT_LE(begun_before, 1);
    EXPECT_LE(cut_by_end, 1);
  }
  EXPECT_EQ(done, tiles);
  for (size_t s = 0; s < tiles.size(); ++s) {
    if (work_ranges_of[s].size() < 2) continue;
    const int32_t last = call.partition().last_work_range(call.position(static_cast<int32_t>(s)), tiles[s]);
    EXPECT_EQ(last, work_ranges_of[s].back());
    EXPECT_EQ(last - work_ranges_of[s].front() + 1, static_cast<int32_t>(work_ranges_of[s].size())) << "one work range after the other";
  }
}

int32_t longest(const std::vector<int32_t>& tiles, int32_t work_ranges) {
  const Call call(tiles, work_ranges);
  int32_t most = 0;
  for (int32_t work_range = 0; work_range < work_ranges; ++work_range) {
    int32_t cost = 0;
    for (const RangeSplit& p : call.range_splits(work_range)) cost += p.end - p.first + kSplitCost;
    most = std::max(most, cost);
  }
  return most;
}

TEST(DenseDecodeWorkRanges, EveryTileIsOneBlocks) {
  std::mt19937 random(1);
  const auto draw = [&](int32_t from, int32_t to) { return std::uniform_int_distribution<int32_t>(from, to)(random); };
  for (int i = 0; i < 4000; ++i) {
    const int32_t most = std::vector<int32_t>{1, 3, 10, 100, 3000}[static_cast<size_t>(draw(0, 4))];
    std::vector<int32_t> tiles(static_cast<size_t>(draw(1, i % 10 == 0 ? 600 : 80)));
    for (int32_t& t : tiles) t = draw(0, 9) == 0 ? 0 : draw(1, most);
    if (draw(0, 3) == 0) tiles[static_cast<size_t>(draw(0, static_cast<int32_t>(tiles.size()) - 1))] = 20 * most;
    expect_whole(tiles, draw(1, 140));
    if (HasFailure()) FAIL() << "case " << i;
  }
}

TEST(DenseDecodeWorkRanges, NoRowsAndNoSequences) {
  for (const int32_t work_ranges : {1, 2, 132}) {
    expect_whole({}, work_ranges);
    expect_whole({0, 0}, work_ranges);
    expect_whole({0, 1, 0}, work_ranges);
  }
}

TEST(DenseDecodeWorkRanges, SequencesOfOneLengthAreCutIntoEqualSplits) {
  const Call two(std::vector<int32_t>(32, 86), 66), four(std::vector<int32_t>(16, 171), 66), one({171}, 132);
  EXPECT_TRUE(two.partition().in_splits() && four.partition().in_splits() && one.partition().in_splits());
  for (int32_t work_range = 0; work_range < 64; ++work_range) {
    EXPECT_EQ(two.range_splits(work_range).size(), 1U);
    EXPECT_EQ(two.range_splits(work_range)[0].first, work_range % 2 * 43);
    EXPECT_EQ(four.range_splits(work_range)[0].sequence, work_range / 4);
  }
  EXPECT_EQ(longest(std::vector<int32_t>(64, 86), 66), 86 + kSplitCost) << "whole sequences";
}

TEST(DenseDecodeWorkRanges, NoBlockHasMuchMoreThanItsShare) {
  std::mt19937 random(2);
  for (const int32_t work_ranges : {33, 66, 132}) {
    for (const int sequences : {1, 4, 30, 64, 100, 300}) {
      for (const int32_t most : {40, 170, 2700}) {
        std::vector<int32_t> tiles(static_cast<size_t>(sequences));
        for (int32_t& t : tiles) t = std::uniform_int_distribution<int32_t>(1, most)(random);
        tiles[0] = 8 * most;  // one is longer than all others
        const int32_t all = std::accumulate(tiles.begin(), tiles.end(), 0), share = ceil_div32(all + sequences * kSplitCost, work_ranges);
        EXPECT_LE(longest(tiles, work_ranges), share + share / 16 + 2 * kSplitCost + 2 * kMinRemainder)
            << work_ranges << " work ranges, " << sequences << " of up to " << most;
      }
    }
  }
}

// The host's schedule has every tile once and says of each request how it is cut; its largest work range is no larger than the blocks would
// have it, by what splits cost.
TEST(DenseDecodeWorkRanges, ASchedulesLargestWorkRangeIsNoLargerThanTheBlocksOwn) {
  std::mt19937 random(3);
  const auto draw = [&](int32_t from, int32_t to) { return std::uniform_int_distribution<int32_t>(from, to)(random); };
  int cut = 0, pairs = 0, smaller = 0;
  for (int i = 0; i < 2000; ++i) {
    const int32_t most = std::vector<int32_t>{1, 100, 700, 5000}[static_cast<size_t>(draw(0, 3))];
    const auto requests = static_cast<size_t>(draw(0, i % 10 == 0 ? 300 : 70));
    std::vector<int32_t> start{draw(0, 9)}, lens, tiles;
    for (size_t r = 0; r < requests; ++r) {
      const int32_t queries = draw(0, 4) == 0 ? 0 : draw(1, 3);
      start.push_back(start.back() + queries);
      lens.push_back(i % 3 == 0 ? most : draw(0, most));
      tiles.push_back(queries == 0 ? 0 : std::max(ceil_div32(lens.back(), kTileRows), 1));
    }
    const int32_t work_ranges = i % 5 == 1 && requests > 0 ? static_cast<int32_t>(2 * requests) : draw(1, 140);
    std::vector<WorkRangeRow> rows(static_cast<size_t>(work_ranges), WorkRangeRow{-7, -7, -7, -7, -7, -7, -7, -7});
    write_work_ranges(start, lens, rows);

    std::vector<std::vector<RangeSplit>> range_splits(rows.size());
    std::vector<std::vector<int32_t>> work_ranges_of(requests);
    std::vector<int32_t> done(requests, 0);
    int32_t largest = 0;
    for (size_t work_range = 0; work_range < rows.size(); ++work_range) {
      const WorkRangeRow& row = rows[work_range];
      int32_t cost = 0;
      for (int32_t r = row.begin; r < row.end + (row.end_row > 0 ? 1 : 0); ++r) {
        const auto of = static_cast<size_t>(r);
        ASSERT_LT(of, requests);
        const RangeSplit p{r, r == row.begin ? row.begin_row / kTileRows : 0, r == row.end ? row.end_row / kTileRows : tiles[of]};
        if (tiles[of] == 0) continue;
        EXPECT_EQ(p.first, done[of]);
        EXPECT_GT(p.end, p.first);
        done[of] = p.end;
        range_splits[work_range].push_back(p);
        work_ranges_of[of].push_back(static_cast<int32_t>(work_range));
        cost += p.end - p.first + kSplitCost;
      }
      largest = std::max(largest, cost);
    }
    EXPECT_EQ(done, tiles);
    const int32_t of_blocks = longest(tiles, work_ranges);
    const bool any_cut = std::any_of(work_ranges_of.begin(), work_ranges_of.end(), [](const auto& of) { return of.size() > 1; });
    EXPECT_LE(largest, of_blocks + (any_cut ? 0 : kCombineCost));
    smaller += largest < of_blocks;

    const auto are_neighbours = [&](const std::vector<int32_t>& of) {
      return of.size() == 2 && of[0] % 2 == 0 && range_splits[static_cast<size_t>(of[0])].size() == 1 &&
             range_splits[static_cast<size_t>(of[1])].size() == 1;
    };
    const auto shared = std::count_if(work_ranges_of.begin(), work_ranges_of.end(), [](const auto& of) { return of.size() > 1; });
    const auto neighbours = std::count_if(work_ranges_of.begin(), work_ranges_of.end(), are_neighbours);
    for (size_t work_range = 0; work_range < rows.size(); ++work_range) {
      const WorkRangeRow& row = rows[work_range];
      const bool any = !range_splits[work_range].empty();
      const RangeSplit last = any ? range_splits[work_range].back() : RangeSplit{};
      const bool goes_on = any && last.first == 0 && last.end < tiles[static_cast<size_t>(last.sequence)];
      EXPECT_EQ(row.splits, goes_on ? std::ssize(work_ranges_of[static_cast<size_t>(last.sequence)]) : 0);
      EXPECT_EQ(row.is_neighbours != 0,
                range_splits[work_range].size() == 1 && are_neighbours(work_ranges_of[static_cast<size_t>(last.sequence)]));
      EXPECT_EQ(row.shared, shared);
      EXPECT_EQ(row.neighbours, neighbours);
    }
    cut += static_cast<int>(shared), pairs += static_cast<int>(neighbours);
    if (HasFailure()) FAIL() << "case " << i;
  }
  EXPECT_GT(cut, 1000);
  EXPECT_GT(pairs, 1000);
  EXPECT_GT(smaller, 500);
}

// Two requests of one length each are as much as the others would be with splits and their combine step.
TEST(DenseDecodeWorkRanges, ASchedulesRequestsAreWholeWhereThatIsNoSlower) {
  std::vector<int32_t> start(129);
  std::iota(start.begin(), start.end(), 0);
  std::vector<WorkRangeRow> rows(66);
  write_work_ranges(start, std::vector<int32_t>(128, 4096), rows);
  for (size_t work_range = 0; work_range < 66; ++work_range) {
    EXPECT_EQ(rows[work_range].begin, std::min<int32_t>(2 * static_cast<int32_t>(work_range), 128));
    EXPECT_EQ(rows[work_range].begin_row, 0);
    EXPECT_EQ(rows[work_range].shared, 0);
  }
  // One more than work ranges would be twice as long for one of them.
  start.resize(68);
  write_work_ranges(start, std::vector<int32_t>(67, 4096), rows);
  EXPECT_GT(rows[0].shared, 30);
}

// As many requests of one length as make two neighbours each.
TEST(DenseDecodeWorkRanges, ASchedulesNeighboursHaveARequestEach) {
  std::vector<int32_t> start(33);
  std::iota(start.begin(), start.end(), 0);
  std::vector<WorkRangeRow> rows(66);
  write_work_ranges(start, std::vector<int32_t>(32, 4096), rows);
  EXPECT_EQ(rows[0].shared, 32);
  EXPECT_EQ(rows[0].neighbours, 32);
}

}  // namespace
}  // namespace strata::cuda::dense_decode
