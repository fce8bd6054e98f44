// The arguments of the compressor's kernels, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/cache_view.h"

namespace strata::opencl {

// An item has four columns of both halves of a row. A group has as many rows as its items can cover.
inline constexpr int kSaveItems = 256;

struct SaveCall {
  uint64_t kv_score, ape, positions, slots;
  int64_t kv_score_stride, ape_stride, num_tokens;
  CacheView state;
  int32_t ratio, half_columns;
  int32_t items, rows;  // items per row, rows per group
  int32_t is_aligned;   // all rows and their halves begin at multiples of 16 bytes
};

// Channels per item in the kernels that write entries.
inline constexpr int kEntryChannels = 4;
inline constexpr int kEntryTokens = 128;  // per group, at most
// Ratio 128: a group pools one slice of the channels. Its splits take the rows round-robin.
inline constexpr int kPoolItems = 256, kPoolSlice = 64, kPoolSplits = kPoolItems / (kPoolSlice / kEntryChannels);

struct CompressCall {
  uint64_t block_table, token_to_req, positions, state_slots, out_slots, norm_weight, cos_sin;
  uint64_t pooled;  // for ratio 128: f32 [tokens, dim]; rows of tokens that complete no entry are unspecified
  int64_t block_stride, cos_sin_stride, num_tokens;
  CacheView state, cache;
  int32_t dim, rotary;
  int32_t tokens;      // per group, processed one by one
  int32_t is_aligned;  // rows of the state begin at multiples of 16 bytes
  float eps;
  float hadamard_scale;  // 0: no Hadamard rotation
};

}  // namespace strata::opencl
