// The epilogue of a selection whose caller wants slots: V4 12.3. A separate kernel would wait for the selection, and its caller for that
// kernel.
#pragma once

#include "backends/cuda/indexer/select_args.h"

namespace strata::cuda {

// What converts a row's entries 32 `word` to 32 `word` + 31 to slots, where pages hold whole words: known before the entries are.
struct WordSlots {
  static constexpr int32_t kNone = INT32_MIN;  // past the table
  int32_t* row = nullptr;                      // null: write_slots() must do it
  int32_t offset = kNone;                      // slot - entry

  // Whether the row's pages hold whole words.
  __device__ __forceinline__ static bool fit(const SelectArgs& a, int64_t token) {
    return token < a.slots.count && a.slots.page_size.value() % 32 == 0;
  }
  WordSlots() = default;
  __device__ __forceinline__ WordSlots(const SelectArgs& a, int64_t token, int word) {
    const SlotArgs& s = a.slots;
    if (!fit(a, token)) return;
    row = s.slots + token * s.slots_stride;
    const int32_t block = s.page_size.divide(32 * word), length = (a.lengths[token] + s.page_size.value() - 1) / s.page_size.value();
    if (block < min(length, s.max_blocks))
      offset = (s.block_table[s.token_to_req[token] * s.table_stride + block] - block) * s.page_size.value();
  }
};
__device__ __forceinline__ void write_slot_count(const SelectArgs& a, int64_t token, int n) {
  if (threadIdx.x == 0) a.slots.lens[token] = min(n, a.k);
}

// For a row of `n` candidates; by the CTA, or the first of a cluster, that wrote the selection. Entries past the table get slot -1.
__device__ __forceinline__ void write_slots(const SelectArgs& a, int64_t token, int n) {
  const SlotArgs& s = a.slots;
  if (token >= s.count) return;
  const int32_t* const entries = a.topk + token * a.topk_stride;
  const int32_t* const pages = s.block_table + s.token_to_req[token] * s.table_stride;
  int32_t* const slots = s.slots + token * s.slots_stride;
  write_slot_count(a, token, n);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < a.k; i += static_cast<int>(blockDim.x)) {
    const int32_t entry = entries[i], block = s.page_size.divide(max(entry, 0));
    slots[i] = entry >= 0 && block < s.max_blocks ? (pages[block] - block) * s.page_size.value() + entry : -1;
  }
}

}  // namespace strata::cuda
