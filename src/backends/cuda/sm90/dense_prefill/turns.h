// Which tiles of queries make a turn. Of causal attention the t-th tile sees t + 1 tiles of keys (and the context's), so two that are as
// far from either end see the same as every other two: blocks that have as many turns are done at the same time.
#pragma once

#include <cstdint>

namespace strata::cuda::dense_prefill {

// Two a turn where all blocks have one even so.
constexpr int32_t tiles_of_turn(bool causal, int64_t heads_of_requests, int64_t tiles, int64_t blocks) {
  return causal && heads_of_requests * ((tiles + 1) / 2) >= blocks ? 2 : 1;
}
constexpr int64_t turns_of_head(int64_t tiles, int32_t of_turn) { return of_turn == 2 ? (tiles + 1) / 2 : tiles; }

// The part-th tile of a head's turn, the one that sees more first; -1: it has none (the middle one of an odd number has no other).
constexpr int32_t tile_of(int32_t tiles, int32_t turn, int32_t part) {
  const int32_t last = tiles - 1 - turn;
  return part == 0 ? last : turn == last ? -1 : turn;
}

}  // namespace strata::cuda::dense_prefill
