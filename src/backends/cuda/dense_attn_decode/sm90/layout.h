// How a call of dense decode is laid out where a block's share follows from the lengths: by what the host knows of it, shapes and bounds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backends/cuda/dense_attn_decode/sm90/spans.h"
#include "core/ceil_div.h"

namespace strata::cuda::dense_decode {

inline constexpr int kRowDim = 576;
inline constexpr int kTileRows = 48;  // three whole tiles fit, with which a call of few rows starts faster than with 64 rows in parts
inline constexpr int kTilePairs = 64;
inline constexpr int kMostSpans = 256, kMostSequences = 32768;  // of a call

// Upper bounds of a request: query tokens, rows.
struct Extent {
  int64_t requests, queries, heads, rows;
  int64_t pairs = queries * heads;  // (query, head)
  int64_t row_tiles = ceil_div(rows, kTileRows);
};

struct Layout {
  static constexpr int64_t kMostGang = 4;  // tiles of pairs that read the same rows at a time
  int64_t gang, sequences_per_request, sequences, spans;
  Layout(const Extent& e, int64_t num_sms) {
    const int64_t tiles = ceil_div(e.pairs, kTilePairs);
    gang = std::clamp<int64_t>(tiles, 1, kMostGang);
    sequences_per_request = std::max<int64_t>(1, ceil_div(tiles, gang));
    sequences = e.requests * sequences_per_request;
    spans = std::clamp<int64_t>(std::min(num_sms / gang, sequences * e.row_tiles), 1, kMostSpans);
    if (in_two_parts(e)) spans = spans / 2 * 2;
  }
  // Whether places on the line (spans.h) are counted in 31 bits.
  bool fits(const Extent& e) const {
    return sequences <= kMostSequences && sequences * (e.row_tiles + kPieceCost) + spans <= std::numeric_limits<int32_t>::max() / 2;
  }
  // Whether sequences of one length are two parts each, whose blocks can be a cluster.
  bool in_two_parts(const Extent& e) const { return e.row_tiles > 1 && spans >= 2 * sequences && spans < 3 * sequences; }
};

}  // namespace strata::cuda::dense_decode
