// How many parts a token's rows are cut into, from what the host knows: shapes. The lengths are on the device.
#pragma once

#include <algorithm>
#include <cstdint>

namespace strata::cuda::dense_decode {

// Several parts only while they are no more than two rounds of blocks: this bounds the workspace.
constexpr int64_t most_parts(int64_t tokens, int64_t tiles, int64_t slots) { return std::min(tokens * tiles, 2 * slots); }

// Costs are in 64ths of a tile's time.
inline constexpr int64_t kTile = 64;

// What merging parts costs.
struct MergeCost {
  int64_t fixed, of_split;
};

// `slots`: blocks that run at a time. A block's start and end cost about two tiles.
constexpr int64_t choose_splits(int64_t tokens, int64_t tiles, int64_t slots, MergeCost merge) {
  constexpr int64_t kBlockCost = 2 * kTile;
  const auto cost = [&](int64_t splits) {
    const int64_t rounds = (tokens * splits + slots - 1) / slots, block = (tiles + splits - 1) / splits * kTile + kBlockCost;
    return rounds * block + (splits == 1 ? 0 : merge.fixed + splits * merge.of_split);
  };
  int64_t best = 1;
  for (int64_t splits = 2; splits <= tiles && tokens * splits <= most_parts(tokens, tiles, slots); ++splits) {
    if (cost(splits) < cost(best)) best = splits;
  }
  return best;
}

}  // namespace strata::cuda::dense_decode
