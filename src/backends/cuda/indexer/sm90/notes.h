// Which notes serve a call, and the room that they take.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/indexer/indexer.h"

namespace strata::cuda::sm90 {

// Of rows so long one block selects as fast as any do together (select_by_length.cuh): nothing is noted of them.
inline constexpr int kFewRowsEntries = 16384;

// Few beside SMs: a row has a cluster of blocks.
inline constexpr int64_t kFewTokens = 132;
inline constexpr int kMostRowBlocks = 8;
inline constexpr int64_t kHeldByBlock = 16384;  // entries of a row, in its registers
// Blocks of a row: as many as hold it with half of the registers, where there are SMs for that.
inline int row_blocks(int64_t num_tokens, int64_t columns, int num_sms) {
  int blocks = 1;
  while (blocks < kMostRowBlocks && blocks * kHeldByBlock / 2 < columns && 2 * blocks * num_tokens <= num_sms) blocks *= 2;
  return blocks;
}
// Entries of a row that their registers hold.
inline int64_t held_entries(int64_t num_tokens, int64_t columns, int num_sms) {
  return row_blocks(num_tokens, columns, num_sms) * kHeldByBlock;
}

// With fewer groups for each of the k more than one of a group's entries is among them too often.
inline constexpr int kGroupsOfEach = 2;

inline constexpr int kCandidateRows = 4096;                          // of a block, at most
inline constexpr int kCandidateSlots = 28;                           // entries that a block hands over: a multiple of 4, one for each lane
inline constexpr int kCandidatesThreads = 512, kCandidateQuads = 2;  // of the selection: a thread holds so many quads of slots
inline constexpr int64_t kCandidatesMinRows = 32768, kCandidatesMaxRows = 524288;

// In the workspace.
struct Candidates {
  uint32_t* keys;     // kCandidateSlots of each block: order keys, 0 behind the last one
  uint32_t* entries;  // theirs
  uint32_t* limits;   // of each block the least key from which on it has handed over all of its entries
  int blocks;
};
// The selection's block has an SM of its own, where it waits for the last logit.
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
// Whether groups may suit such rows.
inline bool leaves_maxima(int64_t columns, int64_t k) {
  return columns > kHeldByBlock && (columns + kMaximaRows - 1) / kMaximaRows >= kGroupsOfEach * k;
}

// Which notes serve so many tokens with rows of so many logits.
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
// Room for those of a token, whatever is left of it; a multiple of 16 bytes.
inline int64_t note_floats(int64_t columns, int64_t k, int num_sms) {
  const int64_t maxima = leaves_maxima(columns, k) ? (columns + kMaximaRows - 1) / kMaximaRows : 0;
  const int64_t candidates = leaves_candidates(columns, k, num_sms) ? candidate_blocks(num_sms) * (2 * kCandidateSlots + 1) : 0;
  return (std::max(maxima, candidates) + 3) / 4 * 4;
}

}  // namespace strata::cuda::sm90
