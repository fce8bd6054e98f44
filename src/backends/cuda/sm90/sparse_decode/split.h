// How many parts a token's rows are cut into, from what the host knows: shapes. The lengths are on the device (TokenRows).
#pragma once

#include <algorithm>
#include <cstdint>

namespace strata::cuda::sparse_decode {

// A batch-invariant call cuts every token's rows at the same places, whatever else is in the batch: 2048 rows a part.
inline constexpr int64_t kInvariantTiles = 32;

// Several parts only while they are no more than two rounds of blocks: this bounds the workspace.
constexpr int64_t most_parts(int64_t tokens, int64_t tiles, int64_t slots) { return std::min(tokens * tiles, 2 * slots); }

// `slots`: blocks (or pairs of them) that run at a time. Times in tiles: a block's start and end cost about two, parts two more to merge.
constexpr int64_t choose_splits(int64_t tokens, int64_t tiles, int64_t slots) {
  constexpr int64_t kBlockCost = 2, kMergeCost = 2;
  const auto rounds = [&](int64_t splits) { return (tokens * splits + slots - 1) / slots; };
  int64_t best = 1, best_cost = rounds(1) * (tiles + kBlockCost);
  for (int64_t splits = 2; splits <= tiles && tokens * splits <= most_parts(tokens, tiles, slots); ++splits) {
    const int64_t cost = rounds(splits) * ((tiles + splits - 1) / splits + kBlockCost) + kMergeCost;
    if (cost < best_cost) best = splits, best_cost = cost;
  }
  return best;
}

}  // namespace strata::cuda::sparse_decode
