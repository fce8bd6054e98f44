// Schedules of dense decode (DenseAttnDecodeParams::schedule): what each block would otherwise work out when it begins (plan.cuh), worked
// out by the host, which has the lengths first, and time to look for the least largest span.
//
// The rows of all requests with queries lie one behind the other, up to the last that any of its queries sees, and a span has those from
// one place up to the next one's. A place is a request and a row, a multiple of kTileRows, that is one of its rows or 0; the end of all is
// the number of requests, row 0. A schedule is its spans in order; spans of nothing come last.
#pragma once

#include <span>

#include "backends/cuda/dense_attn_decode/sm90/layout.h"
#include "backends/cuda/dense_attn_decode/sm90/spans.h"

namespace strata::cuda::dense_decode {

// As in memory.
struct SpanRow {
  int32_t begin = 0, begin_row = 0, end = 0, end_row = 0;
  int32_t parts = 0;                   // of the request that begins here and ends in a later span; 0: there is none
  int32_t is_neighbours = 0;           // 1: an even span and the next have one request, all of it, and nothing else
  int32_t shared = 0, neighbours = 0;  // requests of the call that are in several spans; of these, in two that are neighbours
};
static_assert(sizeof(SpanRow) == 32);

// Shares out all rows of requests to spans, at least one. query_start_loc has one more than lengths.
class SpanWriter {
 public:
  SpanWriter(std::span<const int32_t> query_start_loc, std::span<const int32_t> seq_lens, std::span<SpanRow> rows)
      : start_(query_start_loc), lens_(seq_lens), rows_(rows) {}

  void write() {
    int32_t all = 0, longest = 0, some = 0;
    for (int32_t r = 0; r < requests(); ++r) all += tiles(r), longest = std::max(longest, tiles(r)), some += tiles(r) > 0 ? 1 : 0;
    const auto spans = static_cast<int32_t>(rows_.size());
    // The least cost of a span with which there are enough of them. Each has one more piece than requests begin in it, at most.
    int32_t most = std::max(pieces_of(all + kPieceCost * some, spans), 1);
    while (fill(most, [](int32_t, int32_t) {}) > spans) ++most;
    // Parts of one size are a span each.
    const int32_t part = some > 0 && some <= spans ? pieces_of(longest, spans / some) : 0;
    size_t begun = 0;
    const auto cut = [&](int32_t request, int32_t tile) { begin(begun++, request, tile * kTileRows); };
    // Where each request is two neighbours, these merge it, and there is no merge kernel's time to save.
    const bool neighbours = part > 0 && pieces_of(longest, part) == 2 && spans < 3 * some && spans % 2 == 0;
    const int32_t of_pieces = part > 0 ? std::min(part + kPieceCost, most) : most;
    const int32_t whole = least_of_whole(longest + kPieceCost, of_pieces + (neighbours ? 0 : kMergeCost));
    if (whole > 0) {
      fill_whole(whole, cut);
    } else if (part > 0 && part + kPieceCost <= most) {
      for (int32_t r = next_with_tiles(0); r < requests(); r = next_with_tiles(r + 1)) {
        for (int32_t tile = 0; tile < tiles(r); tile += part) cut(r, tile);
      }
    } else {
      fill(most, cut);
    }
    while (begun < rows_.size()) cut(requests(), 0);
    rows_.back().end = requests(), rows_.back().end_row = 0;
    tell_parts();
  }

 private:
  int32_t requests() const { return static_cast<int32_t>(lens_.size()); }
  // A request that sees no row has a tile too, and results.
  int32_t tiles(int32_t r) const {
    const auto i = static_cast<size_t>(r);
    return start_[i + 1] > start_[i] ? std::max(pieces_of(lens_[i], kTileRows), 1) : 0;
  }
  int32_t next_with_tiles(int32_t r) const {
    while (r < requests() && tiles(r) == 0) ++r;
    return r;
  }

  void begin(size_t span, int32_t request, int32_t row) {
    rows_[span] = {.begin = request, .begin_row = row};
    if (span > 0) rows_[span - 1].end = request, rows_[span - 1].end_row = row;
  }

  // One span after the other gets tiles until it costs `most`, or what is left of that is a crumb. How many there are; cut(request, tile)
  // where each begins.
  template <class Cut>
  int32_t fill(int32_t most, const Cut& cut) const {
    int32_t spans = 0, room = 0;  // of the last span
    for (int32_t r = next_with_tiles(0); r < requests(); r = next_with_tiles(r + 1)) {
      for (int32_t tile = 0, of = tiles(r); tile < of;) {
        if (spans == 0 || room - kPieceCost < std::min(of - tile, kCrumb + 1)) {
          cut(r, tile);
          ++spans, room = std::max(most, kPieceCost + 1);
        }
        const int32_t taken = std::min(of - tile, room - kPieceCost);
        tile += taken, room -= kPieceCost + taken;
      }
    }
    return spans;
  }

  // The same of whole requests.
  template <class Cut>
  int32_t fill_whole(int32_t most, const Cut& cut) const {
    int32_t spans = 0, room = 0;
    for (int32_t r = next_with_tiles(0); r < requests(); r = next_with_tiles(r + 1)) {
      const int32_t cost = tiles(r) + kPieceCost;
      if (spans == 0 || room < cost) {
        cut(r, 0);
        ++spans, room = most;
      }
      room -= cost;
    }
    return spans;
  }
  // The least cost of a span with which there are enough of them for whole requests; 0: it is more than `up_to`.
  int32_t least_of_whole(int32_t from, int32_t up_to) const {
    const auto enough = [&](int32_t most) { return fill_whole(most, [](int32_t, int32_t) {}) <= static_cast<int32_t>(rows_.size()); };
    if (from > up_to || !enough(up_to)) return 0;
    while (from < up_to) {
      const int32_t middle = from + (up_to - from) / 2;
      enough(middle) ? up_to = middle : from = middle + 1;
    }
    return from;
  }

  void tell_parts() {
    int32_t shared = 0, neighbours = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      SpanRow& first = rows_[i];
      const bool begins_here = first.end != first.begin || first.begin_row == 0;
      if (first.end_row == 0 || !begins_here) continue;
      size_t last = i + 1;
      while (rows_[last].end == first.end && rows_[last].end_row > 0) ++last;
      first.parts = static_cast<int32_t>(last - i) + 1;
      ++shared;
      const bool ends_there = rows_[last].end_row == 0 && rows_[last].end == next_with_tiles(first.end + 1);
      if (i % 2 != 0 || first.parts != 2 || first.begin != first.end || !ends_there) continue;
      first.is_neighbours = rows_[last].is_neighbours = 1;
      ++neighbours;
    }
    for (SpanRow& row : rows_) row.shared = shared, row.neighbours = neighbours;
  }

  std::span<const int32_t> start_, lens_;
  std::span<SpanRow> rows_;
};

inline void write_spans(std::span<const int32_t> query_start_loc, std::span<const int32_t> seq_lens, std::span<SpanRow> rows) {
  SpanWriter(query_start_loc, seq_lens, rows).write();
}

}  // namespace strata::cuda::dense_decode
