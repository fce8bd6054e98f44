// Which notes serve a call, and their size.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/indexer/indexer.h"

namespace strata::cuda::sm90 {

// For rows up to this length one CTA selects as fast as any number (select_by_length.cuh): no notes are written.
inline constexpr int kFewRowsEntries = 16384;

// Few compared with the SMs: a row has a cluster of CTAs.
inline constexpr int64_t kFewTokens = 132;
inline constexpr int kMaxRowBlocks = 8;
inline constexpr int64_t kHeldByBlock = 16384;  // entries of a row, in its registers
// CTAs per row: as many as hold it with half of the registers, where there are enough SMs.
inline int row_blocks(int64_t num_tokens, int64_t columns, int num_sms) {
  int blocks = 1;
  while (blocks < kMaxRowBlocks && blocks * kHeldByBlock / 2 < columns && 2 * blocks * num_tokens <= num_sms) blocks *= 2;
  return blocks;
}
// Entries of a row that the registers of these CTAs hold.
inline int64_t held_entries(int64_t num_tokens, int64_t columns, int num_sms) {
  return row_blocks(num_tokens, columns, num_sms) * kHeldByBlock;
}

// With fewer groups per k, too often more than one entry of a group is among the k largest.
inline constexpr int kGroupsOfEach = 2;

inline constexpr int kCandidateRows = 4096;                          // of a CTA, at most
inline constexpr int kCandidateSlots = 28;                           // entries that a CTA writes: a multiple of 4, one per lane
inline constexpr int kCandidatesThreads = 512, kCandidateQuads = 2;  // of the selection: quads of slots that a thread holds
inline constexpr int64_t kCandidatesMinRows = 32768, kCandidatesMaxRows = 524288;

// In the workspace.
struct Candidates {
  uint32_t* keys;     // kCandidateSlots per CTA: order keys, then 0
  uint32_t* entries;  // their entries
  uint32_t* limits;   // per CTA: the smallest key from which on it has written all of its entries
  int blocks;
};
// The selection's CTA has an SM of its own, where it waits for the last logit.
inline int candidate_blocks(int num_sms) { return num_sms - 1; }
inline Candidates candidates_in(float* memory, int num_sms) {
  const int blocks = candidate_blocks(num_sms);
  auto* const keys = reinterpret_cast<uint32_t*>(memory);
  return {keys, keys + blocks * kCandidateSlots, keys + 2 * blocks * kCandidateSlots, blocks};
}

inline bool leaves_candidates(int64_t columns, int64_t k, int num_sms) {
  const int blocks = candidate_blocks(num_sms);
  return columns >= std::max(kCandidatesMinRows, 64 * k) && columns <= kCandidatesMaxRows && columns <= int64_t{kCandidateRows} * blocks &&
         k <= 16 * blocks && blocks * kCandidateSlots <= 4 * kCandidateQuads * kCandidatesThreads;
}
// Whether groups may suit rows of this length.
inline bool leaves_maxima(int64_t columns, int64_t k) {
  return columns > kHeldByBlock && (columns + kMaximaRows - 1) / kMaximaRows >= kGroupsOfEach * k;
}

// Whether the notes serve num_tokens rows of `columns` logits.
inline bool serve(Notes notes, int64_t num_tokens, int64_t columns, int64_t k, int num_sms) {
  switch (notes) {
    case Notes::candidates: return num_tokens == 1 && leaves_candidates(columns, k, num_sms);
    case Notes::maxima:
      return num_tokens <= std::min<int64_t>(kFewTokens, num_sms) && columns > held_entries(num_tokens, columns, num_sms) &&
             leaves_maxima(columns, k);
    case Notes::none: break;
  }
  return true;
}
// Floats of a token's notes, whichever are written; a multiple of 16 bytes.
inline int64_t note_floats(int64_t columns, int64_t k, int num_sms) {
  const int64_t maxima = leaves_maxima(columns, k) ? (columns + kMaximaRows - 1) / kMaximaRows : 0;
  const int64_t candidates = leaves_candidates(columns, k, num_sms) ? candidate_blocks(num_sms) * (2 * kCandidateSlots + 1) : 0;
  return (std::max(maxima, candidates) + 3) / 4 * 4;
}

}  // namespace strata::cuda::sm90
