#include "batch/batch_buffers.h"

#include <algorithm>
#include <limits>

#include "batch/group_spec.h"
#include "core/check.h"

namespace strata {
namespace {

int64_t max_blocks(const CacheGroupSpec& spec, const BatchLimits& limits) {
  return ceil_div(limits.max_model_len, spec.positions_per_page());
}

// For one step, all requests together. A sliding group needs `retained` positions per request, the new tokens, and blocks that begin or end
// outside these.
int64_t max_entries(const CacheGroupSpec& spec, const BatchLimits& limits) {
  const int64_t all = limits.max_num_seqs * max_blocks(spec, limits);
  if (spec.retained == 0) return all;
  const int64_t span = spec.positions_per_page();
  return std::min(all, limits.max_num_seqs * (ceil_div(spec.retained, span) + 2) + ceil_div(limits.max_num_batched_tokens, span));
}

}  // namespace

int64_t c128_width(int64_t positions) {
  require(positions >= 0 && positions <= std::numeric_limits<int32_t>::max(), "c128_width: positions must be in [0, 2^31), is {}",
          positions);
  return ceil_div(ceil_div(positions, 128), 128) * 128;
}

bool has_group(std::span<const CacheGroupSpec> groups, CacheGroup group) {
  return std::any_of(groups.begin(), groups.end(), [&](const CacheGroupSpec& spec) { return spec.group == group; });
}

UploadViews lay_out_upload(Arena& arena, const BatchLimits& limits, std::span<const CacheGroupSpec> groups,
                           const ScheduleBytes& schedules) {
  const int64_t tokens = limits.max_num_batched_tokens;
  const int64_t requests = limits.max_num_seqs;
  const bool c4 = has_group(groups, CacheGroup::c4_compressed) || has_group(groups, CacheGroup::c4_indexer);
  UploadViews v;
  v.positions = arena.tensor(DType::i64, {tokens});
  v.token_to_req = arena.tensor(DType::i32, {tokens});
  v.is_valid_token = arena.tensor(DType::u8, {tokens});
  v.query_start_loc = arena.tensor(DType::i32, {requests + 1});
  v.seq_lens = arena.tensor(DType::i32, {requests});
  if (has_group(groups, CacheGroup::window)) v.gather_lens = arena.tensor(DType::i32, {requests});
  if (c4) {
    v.c4_lens = arena.tensor(DType::i32, {tokens});
    v.c4_seq_lens = arena.tensor(DType::i32, {requests});
  }
  if (has_group(groups, CacheGroup::c128_compressed)) v.c128_seq_lens = arena.tensor(DType::i32, {requests});
  if (schedules.c128 > 0) v.c128_schedule = arena.tensor(DType::u8, {schedules.c128});
  if (schedules.mla > 0) v.mla_schedule = arena.tensor(DType::u8, {schedules.mla});
  if (has_group(groups, CacheGroup::mla_indexer)) v.mla_lens = arena.tensor(DType::i32, {tokens});

  int64_t entries = 0;
  for (const CacheGroupSpec& spec : groups) {
    // A sum that overflows is refused like a size that does not fit.
    if (__builtin_add_overflow(entries, max_entries(spec, limits), &entries)) entries = std::numeric_limits<int64_t>::max();
  }
  v.table_segments = arena.tensor(DType::i32, {requests * std::ssize(groups), 4});
  v.table_entries_offset = arena.used();
  v.table_entries = arena.tensor(DType::i32, {entries});
  return v;
}

DerivedViews lay_out_derived(Arena& arena, const BatchLimits& limits, std::span<const CacheGroupSpec> groups, int64_t window) {
  const int64_t tokens = limits.max_num_batched_tokens;
  DerivedViews v;
  int64_t columns = 0;
  for (const CacheGroupSpec& spec : groups) columns += max_blocks(spec, limits);
  v.tables = arena.tensor(DType::i32, {limits.max_num_seqs, columns});
  int64_t begin = 0;
  for (const CacheGroupSpec& spec : groups) {
    const auto g = static_cast<size_t>(spec.group);
    v.first_columns[g] = begin;
    v.block_tables[g] = v.tables.columns(begin, max_blocks(spec, limits));
    begin += max_blocks(spec, limits);
  }
  for (const CacheGroupSpec& spec : groups) v.slot_mappings[static_cast<size_t>(spec.group)] = arena.tensor(DType::i64, {tokens});
  if (has_group(groups, CacheGroup::window)) {
    v.swa_indices = arena.tensor(DType::i32, {tokens, window});
    v.swa_lens = arena.tensor(DType::i32, {tokens});
  }
  if (has_group(groups, CacheGroup::c128_compressed)) {
    const int64_t width = c128_width(limits.max_model_len);
    v.c128_slots = arena.tensor(DType::i32, {tokens, width});
    v.c128_local = arena.tensor(DType::i32, {tokens, width});
    v.c128_lens = arena.tensor(DType::i32, {tokens});
  }
  return v;
}

}  // namespace strata
