// Layout of a call of dense decode whose work ranges follow from the lengths, computed from what the host knows: shapes and bounds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backends/cuda/dense_attn_decode/sm90/work_ranges.h"
#include "core/ceil_div.h"

namespace strata::cuda::dense_decode {

inline constexpr int kRowDim = 576;
inline constexpr int kTileRows = 48;  // three whole tiles fit, with which calls of few rows start faster than with 64 rows in slots
inline constexpr int kTilePairs = 64;
inline constexpr int kMaxWorkRanges = 256, kMaxSequences = 32768;  // upper bounds of a call

// Upper bounds of a request: query tokens, rows.
struct Extent {
  int64_t requests, queries, heads, rows;
  int64_t pairs = queries * heads;  // (query, head)
  int64_t row_tiles = ceil_div(rows, kTileRows);
};

struct Layout {
  static constexpr int64_t kMaxGang = 4;  // tiles of pairs that read the same rows at the same time
  int64_t gang, sequences_per_request, sequences, work_ranges;
  Layout(const Extent& e, int64_t num_sms) {
    const int64_t tiles = ceil_div(e.pairs, kTilePairs);
    gang = std::clamp<int64_t>(tiles, 1, kMaxGang);
    sequences_per_request = std::max<int64_t>(1, ceil_div(tiles, gang));
    sequences = e.requests * sequences_per_request;
    work_ranges = std::clamp<int64_t>(std::min(num_sms / gang, sequences * e.row_tiles), 1, kMaxWorkRanges);
    if (in_two_splits(e)) work_ranges = work_ranges / 2 * 2;
  }
  // Whether positions on the line (work_ranges.h) fit in 31 bits.
  bool fits(const Extent& e) const {
    return sequences <= kMaxSequences && sequences * (e.row_tiles + kSplitCost) + work_ranges <= std::numeric_limits<int32_t>::max() / 2;
  }
  // Whether sequences of equal length are two splits each, whose CTAs can be a cluster.
  bool in_two_splits(const Extent& e) const { return e.row_tiles > 1 && work_ranges >= 2 * sequences && work_ranges < 3 * sequences; }
};

}  // namespace strata::cuda::dense_decode
