// How a call is dealt to blocks: whole tokens in rounds of the multiprocessors, and what is left, which comes first, in parts of the rows.
#pragma once

#include <algorithm>
#include <cstdint>

namespace strata::cuda::sparse_prefill {

inline constexpr int64_t kMergeCost = 4;   // what parts cost beside their tiles, in tiles
inline constexpr int64_t kLeastTiles = 2;  // of a part
inline constexpr int64_t kMostParts = 32;  // of a token
// Of a call's time at least is saved one part in so many: what idles in the last round leaves power to the others.
inline constexpr int64_t kLeastGain = 100;

struct Plan {
  int64_t whole, cut;               // tokens: the last ones are cut
  int64_t splits, tiles_per_split;  // of the latter
};

// slots: tokens that run at a time, each with all its heads.
constexpr Plan plan(int64_t tokens, int64_t tiles, int64_t slots) {
  const int64_t cut = tokens % slots, whole = tokens - cut;
  if (cut == 0) return {tokens, 0, 1, tiles};
  const int64_t splits = std::clamp<int64_t>(slots / cut, 1, kMostParts);
  const int64_t part = std::max(kLeastTiles, (tiles + splits - 1) / splits);
  const int64_t saved = tiles - part - kMergeCost;
  if (saved <= 0 || saved * kLeastGain < whole / slots * tiles) return {tokens, 0, 1, tiles};
  return {whole, cut, (tiles + part - 1) / part, part};
}

// Room for the parts of tokens, which does not shrink as a call grows.
constexpr int64_t most_parts(int64_t tokens, int64_t tiles, int64_t slots) {
  return tiles <= kLeastTiles + kMergeCost ? 0 : std::min(tokens * std::min(tiles, kMostParts), slots);
}

}  // namespace strata::cuda::sparse_prefill
