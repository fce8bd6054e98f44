// Which tiles of queries make a turn, and whose turn it is. Of causal attention the t-th tile sees t + 1 tiles of keys (and the context's),
// so two that are as far from either end see the same as every other two: blocks that have as many turns are done at the same time.
#pragma once

#include <cstdint>

namespace strata::cuda::dense_prefill {

// Two a turn where these fill rounds of all blocks: 84 % of them, or 70 % of one, which takes as long as its first turn in any case.
constexpr int32_t tiles_of_turn(bool causal, int64_t heads_of_requests, int64_t tiles, int64_t blocks) {
  const int64_t turns = heads_of_requests * ((tiles + 1) / 2), rounds = (turns + blocks - 1) / blocks;
  return causal && 50 * heads_of_requests * tiles > (rounds > 1 ? 84 : 70) * rounds * blocks ? 2 : 1;
}
constexpr int64_t turns_of_head(int64_t tiles, int32_t of_turn) { return of_turn == 2 ? (tiles + 1) / 2 : tiles; }

// A block's turn in a round, perhaps beyond the last one. Single tiles are dealt in the opposite order every second time, as the first ones
// of a round see most keys.
constexpr int32_t turn_of_round(int32_t round, int32_t blocks, int32_t block, int32_t of_turn) {
  return round * blocks + (of_turn == 1 && round % 2 != 0 ? blocks - 1 - block : block);
}

// The part-th tile of a head's turn, the one that sees more first; -1: it has none (the middle one of an odd number has no other).
constexpr int32_t tile_of(int32_t tiles, int32_t turn, int32_t part) {
  const int32_t last = tiles - 1 - turn;
  return part == 0 ? last : turn == last ? -1 : turn;
}

}  // namespace strata::cuda::dense_prefill
