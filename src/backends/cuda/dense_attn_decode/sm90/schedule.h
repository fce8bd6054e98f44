// Schedules of dense decode (DenseAttnDecodeParams::schedule): what each CTA would otherwise compute when it starts (plan.cuh). The host
// computes it, because it has the lengths first, and time to minimise the largest work range.
//
// The rows of all requests with queries are concatenated, each up to the last row that any of its queries sees. A work range has the rows
// from one cut up to the next. A cut is a request and a row, which is 0 or one of the request's rows and a multiple of kTileRows. The last
// cut is the number of requests, row 0. A schedule is its work ranges in order; empty ranges come last.
#pragma once

#include <span>

#include "backends/cuda/dense_attn_decode/sm90/layout.h"
#include "backends/cuda/dense_attn_decode/sm90/work_ranges.h"

namespace strata::cuda::dense_decode {

// Layout in memory.
struct WorkRangeRow {
  int32_t begin = 0, begin_row = 0, end = 0, end_row = 0;
  int32_t splits = 0;                  // splits of the request that begins here and ends in a later range; 0: none
  int32_t is_neighbours = 0;           // 1: this range is even, and it and the next have exactly one request, all of it
  int32_t shared = 0, neighbours = 0;  // requests of the call in several ranges; of these, in two neighbouring ranges
};
static_assert(sizeof(WorkRangeRow) == 32);

// Divides all rows of the requests into at least one work range. query_start_loc has one entry more than lengths.
class WorkRangeWriter {
 public:
  WorkRangeWriter(std::span<const int32_t> query_start_loc, std::span<const int32_t> seq_lens, std::span<WorkRangeRow> rows)
      : start_(query_start_loc), lens_(seq_lens), rows_(rows) {}

  void write() {
    int32_t all = 0, longest = 0, some = 0;
    for (int32_t r = 0; r < requests(); ++r) all += tiles(r), longest = std::max(longest, tiles(r)), some += tiles(r) > 0 ? 1 : 0;
    const auto work_ranges = static_cast<int32_t>(rows_.size());
    // The smallest range cost with which there are enough ranges. Each range has at most one split more than requests begin in it.
    int32_t most = std::max(ceil_div32(all + kSplitCost * some, work_ranges), 1);
    while (fill(most, [](int32_t, int32_t) {}) > work_ranges) ++most;
    // Splits of equal size are a range each.
    const int32_t tiles_per_split = some > 0 && some <= work_ranges ? ceil_div32(longest, work_ranges / some) : 0;
    size_t begun = 0;
    const auto cut = [&](int32_t request, int32_t tile) { begin(begun++, request, tile * kTileRows); };
    // Where each request is two neighbouring ranges, these combine it, and no time of a combine kernel can be saved.
    const bool neighbours =
        tiles_per_split > 0 && ceil_div32(longest, tiles_per_split) == 2 && work_ranges < 3 * some && work_ranges % 2 == 0;
    const int32_t of_splits = tiles_per_split > 0 ? std::min(tiles_per_split + kSplitCost, most) : most;
    const int32_t whole = min_whole_cost(longest + kSplitCost, of_splits + (neighbours ? 0 : kCombineCost));
    if (whole > 0) {
      fill_whole(whole, cut);
    } else if (tiles_per_split > 0 && tiles_per_split + kSplitCost <= most) {
      for (int32_t r = next_with_tiles(0); r < requests(); r = next_with_tiles(r + 1)) {
        for (int32_t tile = 0; tile < tiles(r); tile += tiles_per_split) cut(r, tile);
      }
    } else {
      fill(most, cut);
    }
    while (begun < rows_.size()) cut(requests(), 0);
    rows_.back().end = requests(), rows_.back().end_row = 0;
    mark_splits();
  }

 private:
  int32_t requests() const { return static_cast<int32_t>(lens_.size()); }
  // A request that sees no row has a tile too, and results.
  int32_t tiles(int32_t r) const {
    const auto i = static_cast<size_t>(r);
    return start_[i + 1] > start_[i] ? std::max(ceil_div32(lens_[i], kTileRows), 1) : 0;
  }
  int32_t next_with_tiles(int32_t r) const {
    while (r < requests() && tiles(r) == 0) ++r;
    return r;
  }

  void begin(size_t work_range, int32_t request, int32_t row) {
    rows_[work_range] = {.begin = request, .begin_row = row};
    if (work_range > 0) rows_[work_range - 1].end = request, rows_[work_range - 1].end_row = row;
  }

  // Fills one range after the other with tiles, until a range costs `most` or less than kMinRemainder of that is left. Returns the number
  // of ranges; cut(request, tile) is called where each begins.
  template <class Cut>
  int32_t fill(int32_t most, const Cut& cut) const {
    int32_t work_ranges = 0, room = 0;  // of the last range
    for (int32_t r = next_with_tiles(0); r < requests(); r = next_with_tiles(r + 1)) {
      for (int32_t tile = 0, of = tiles(r); tile < of;) {
        if (work_ranges == 0 || room - kSplitCost < std::min(of - tile, kMinRemainder + 1)) {
          cut(r, tile);
          ++work_ranges, room = std::max(most, kSplitCost + 1);
        }
        const int32_t taken = std::min(of - tile, room - kSplitCost);
        tile += taken, room -= kSplitCost + taken;
      }
    }
    return work_ranges;
  }

  // The same with whole requests.
  template <class Cut>
  int32_t fill_whole(int32_t most, const Cut& cut) const {
    int32_t work_ranges = 0, room = 0;
    for (int32_t r = next_with_tiles(0); r < requests(); r = next_with_tiles(r + 1)) {
      const int32_t cost = tiles(r) + kSplitCost;
      if (work_ranges == 0 || room < cost) {
        cut(r, 0);
        ++work_ranges, room = most;
      }
      room -= cost;
    }
    return work_ranges;
  }
  // The smallest range cost with which there are enough ranges for whole requests; 0: more than `up_to`.
  int32_t min_whole_cost(int32_t from, int32_t up_to) const {
    const auto enough = [&](int32_t most) { return fill_whole(most, [](int32_t, int32_t) {}) <= static_cast<int32_t>(rows_.size()); };
    if (from > up_to || !enough(up_to)) return 0;
    while (from < up_to) {
      const int32_t middle = from + (up_to - from) / 2;
      enough(middle) ? up_to = middle : from = middle + 1;
    }
    return from;
  }

  void mark_splits() {
    int32_t shared = 0, neighbours = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      WorkRangeRow& first = rows_[i];
      const bool begins_here = first.end != first.begin || first.begin_row == 0;
      if (first.end_row == 0 || !begins_here) continue;
      size_t last = i + 1;
      while (rows_[last].end == first.end && rows_[last].end_row > 0) ++last;
      first.splits = static_cast<int32_t>(last - i) + 1;
      ++shared;
      const bool ends_there = rows_[last].end_row == 0 && rows_[last].end == next_with_tiles(first.end + 1);
      if (i % 2 != 0 || first.splits != 2 || first.begin != first.end || !ends_there) continue;
      first.is_neighbours = rows_[last].is_neighbours = 1;
      ++neighbours;
    }
    for (WorkRangeRow& row : rows_) row.shared = shared, row.neighbours = neighbours;
  }

  std::span<const int32_t> start_, lens_;
  std::span<WorkRangeRow> rows_;
};

inline void write_work_ranges(std::span<const int32_t> query_start_loc, std::span<const int32_t> seq_lens, std::span<WorkRangeRow> rows) {
  WorkRangeWriter(query_start_loc, seq_lens, rows).write();
}

}  // namespace strata::cuda::dense_decode
