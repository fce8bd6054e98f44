// Arguments of the top-k kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/indexer/indexer.h"

namespace strata::cuda {

// Slots of the selected entries of the first `count` rows.
struct SlotArgs {
  const int32_t* block_table = nullptr;
  int64_t table_stride = 0;
  int32_t max_blocks = 0;
  Divisor page_size{1};
  const int32_t* token_to_req = nullptr;
  int32_t* slots = nullptr;
  int64_t slots_stride = 0;
  int32_t* lens = nullptr;
  int64_t count = 0;
};

struct SelectArgs {
  const float* logits;
  int64_t logits_stride;
  bool aligned;  // every row is 16-byte aligned
  const int32_t* lengths;
  int32_t* topk;
  int64_t topk_stride;
  int32_t k;
  bool after_logits;    // the preceding kernel computes the logits, and started when the lengths were complete
  const float* maxima;  // the largest of every kMaximaRows logits, if the selection was given these
  int64_t maxima_stride;
  SlotArgs slots;
};

// Whether rows of `columns` entries can be read in quads to their end: rows in the workspace are padded to whole quads.
inline bool has_whole_quads(const SelectArgs& a, int64_t columns) { return a.aligned && (columns % 4 == 0 || a.after_logits); }

inline SlotArgs slot_args(const SlotViews& v) {
  if (!v.slots.present()) return {};
  // A table without rows, where no token has an entry, has no page either.
  const int64_t max_blocks =
      v.block_table.shape[0] > 0 ? std::min<int64_t>(v.block_table.shape[1], std::numeric_limits<int32_t>::max()) : 0;
  return {.block_table = v.block_table.ptr<int32_t>(),
          .table_stride = v.block_table.stride[0],
          .max_blocks = static_cast<int32_t>(max_blocks),
          .page_size = Divisor(v.page_size),
          .token_to_req = v.token_to_req.ptr<int32_t>(),
          .slots = v.slots.ptr<int32_t>(),
          .slots_stride = v.slots.stride[0],
          .lens = v.lens.ptr<int32_t>(),
          .count = v.slots.shape[0]};
}

inline SelectArgs select_args(const TopkSelectParams& p, const SelectHints& hints) {
  const bool aligned = reinterpret_cast<uintptr_t>(p.logits.data) % 16 == 0 && (p.logits.stride[0] % 4 == 0 || p.logits.shape[0] == 1);
  return {p.logits.ptr<float>(),
          p.logits.stride[0],
          aligned,
          p.lengths.ptr<int32_t>(),
          p.topk_indices.ptr<int32_t>(),
          p.topk_indices.stride[0],
          static_cast<int32_t>(p.topk_indices.shape[1]),
          hints.after_logits,
          hints.notes.present() ? hints.notes.ptr<float>() : nullptr,
          hints.notes.present() ? hints.notes.stride[0] : 0,
          slot_args(hints.slots)};
}

// Threads per row: many where few rows must be quick, few where many rows share an SM. The shortest list limits this (SelectShared).
inline int select_threads(const TopkSelectParams& p, int num_sms) {
  if (p.lengths.shape[0] <= 2 * num_sms) return 512;
  const bool short_list = p.topk_indices.shape[1] <= 1024 && (!p.logits.present() || p.logits.shape[1] <= 131072);
  return short_list ? 128 : 256;
}

}  // namespace strata::cuda
