// The k largest of a stream of logits, exactly and in bounded memory: V4 specification 10.4, MLA specification 11.8.
//
// Logits arrive in ascending order of their entries. Candidates above a threshold are appended. A full buffer is compacted to its k best,
// whose smallest becomes the threshold. An entry that equals the threshold comes after k entries that are at least as large. So "larger
// logit first, smaller entry among equals" needs only a strict comparison, and candidates stay in ascending order throughout. Appending
// costs about 8 vector operations per vector, compaction about 12 per vector of candidates. With logits in random order k (1 + ln(n / k))
// of n become candidates. In the worst order (ascending) each entry is compacted once or twice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "strata/device.h"

namespace strata::cpu::indexer {

// Logits as signed numbers of the same order: both zeros are one number, NaN is -inf. No logit has kNoThreshold.
inline constexpr int32_t kNoThreshold = INT32_MIN;

struct Selection {
  int32_t* key = nullptr;
  int32_t* entry = nullptr;
  int64_t count = 0;
  int32_t threshold = kNoThreshold;
  bool dense = true;  // many of the last logits were candidates
};

inline constexpr int64_t kAppendChunk = 1024;
inline constexpr int64_t kVectorSlack = 16;  // compressing stores write whole vectors

// Candidates that a buffer holds: twice k, so that a compaction has at least k new ones, and a minimum for small k.
inline int64_t selection_capacity(int64_t k) { return k + std::max<int64_t>(k, 2048) + kAppendChunk; }
// Bytes of a buffer, and of the scratch that all buffers of a thread share.
inline size_t selection_bytes(int64_t k) { return static_cast<size_t>((selection_capacity(k) + kVectorSlack) * 8); }
inline size_t selection_scratch_bytes(int64_t k) { return static_cast<size_t>((selection_capacity(k) + kVectorSlack) * 4); }

inline Selection make_selection(std::byte* memory, int64_t k) {
  auto* keys = reinterpret_cast<int32_t*>(memory);
  return {keys, keys + selection_capacity(k) + kVectorSlack};
}

// Vector code, selected once per call of an op.
struct SelectionFunctions {
  // Logits of entries [first, first + n).
  void (*append)(Selection& selection, const float* logits, int64_t n, int64_t first, int64_t k, int32_t* scratch);
  // Appends candidates of another selection whose entries are all larger.
  void (*append_candidates)(Selection& selection, const int32_t* keys, const int32_t* entries, int64_t n, int64_t k, int32_t* scratch);
  // Leaves the k best (all, if there are fewer) in ascending order of entries.
  void (*compact)(Selection& selection, int64_t k, int32_t* scratch);
};
SelectionFunctions selection_functions(const Device& device);

// A row that has at most k entries.
void select_all(int64_t length, int64_t k, int32_t* out);

}  // namespace strata::cpu::indexer
