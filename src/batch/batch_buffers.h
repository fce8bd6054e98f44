// Layout of a step's arrays. One layout function serves host staging memory and device memory, so that the step's host data moves in one
// copy.
#pragma once

#include <array>
#include <span>

#include "core/arena.h"
#include "contracts/dense_decode_schedule.h"
#include "contracts/sparse_decode_schedule.h"
#include "strata/batch.h"

namespace strata {

// What the host computes and the device receives: views of the largest sizes. Absent where the model has no such group.
struct UploadViews {
  TensorView positions;
  TensorView token_to_req;
  TensorView is_valid_token;
  TensorView c4_lens;
  TensorView mla_lens;
  TensorView query_start_loc;
  TensorView seq_lens;
  TensorView gather_lens;
  TensorView c4_seq_lens;
  TensorView c128_seq_lens;
  // Of the largest size; absent where no implementation takes a schedule.
  TensorView c128_schedule;
  TensorView mla_schedule;
  // What the step needs of its requests' block tables (ScatterBlockTablesParams), one segment per request and group. The entries come after
  // everything else, so that the copy ends with the last entry.
  TensorView table_segments;
  TensorView table_entries;
  int64_t table_entries_offset = 0;
};

// What the device ops compute.
struct DerivedViews {
  // One row per request: the block tables of all groups, next to each other.
  TensorView tables;
  std::array<TensorView, kNumCacheGroups> block_tables;
  std::array<int64_t, kNumCacheGroups> first_columns{};  // first column of each group in `tables`
  std::array<TensorView, kNumCacheGroups> slot_mappings;
  TensorView swa_indices;
  TensorView swa_lens;
  TensorView c128_slots;
  TensorView c128_local;
  TensorView c128_lens;
};

// Bytes of the largest schedules.
struct ScheduleBytes {
  int64_t c128 = 0;
  int64_t mla = 0;
};
UploadViews lay_out_upload(Arena& arena, const BatchLimits& limits, std::span<const CacheGroupSpec> groups, const ScheduleBytes& schedules);
DerivedViews lay_out_derived(Arena& arena, const BatchLimits& limits, std::span<const CacheGroupSpec> groups, int64_t window);

bool has_group(std::span<const CacheGroupSpec> groups, CacheGroup group);

// The first n rows. Unlike TensorView::slice, for rows known to exist: without the cost of a message.
inline TensorView first_rows(TensorView view, int64_t n) {
  if (view.present()) view.shape[0] = n;
  return view;
}

}  // namespace strata
