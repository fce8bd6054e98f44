// Divides a call among CTAs: whole tokens in waves of the SMs. The remaining tokens come first, with their rows split.
#pragma once

#include <algorithm>
#include <cstdint>

namespace strata::cuda::sparse_prefill {

inline constexpr int64_t kCombineCost = 4;  // cost of a token's splits in addition to its tiles, in tiles
inline constexpr int64_t kMinTiles = 2;     // of a split
inline constexpr int64_t kMaxSplits = 32;   // of a token
// Splitting must save at least 1 / kMinGain of a call's time: SMs idle in the last wave leave power to the others.
inline constexpr int64_t kMinGain = 100;

struct Plan {
  int64_t whole, cut;               // tokens: the last `cut` are split
  int64_t splits, tiles_per_split;  // of the split tokens
};

// slots: tokens that run at the same time, each with all its heads.
constexpr Plan plan(int64_t tokens, int64_t tiles, int64_t slots) {
  const int64_t cut = tokens % slots, whole = tokens - cut;
  if (cut == 0) return {tokens, 0, 1, tiles};
  const int64_t splits = std::clamp<int64_t>(slots / cut, 1, kMaxSplits);
  const int64_t tiles_per_split = std::max(kMinTiles, (tiles + splits - 1) / splits);
  const int64_t saved = tiles - tiles_per_split - kCombineCost;
  if (saved <= 0 || saved * kMinGain < whole / slots * tiles) return {tokens, 0, 1, tiles};
  return {whole, cut, (tiles + tiles_per_split - 1) / tiles_per_split, tiles_per_split};
}

// Room for the splits of tokens, which does not shrink as a call grows.
constexpr int64_t max_splits(int64_t tokens, int64_t tiles, int64_t slots) {
  return tiles <= kMinTiles + kCombineCost ? 0 : std::min(tokens * std::min(tiles, kMaxSplits), slots);
}

}  // namespace strata::cuda::sparse_prefill
