// The arguments of the kernels of compressor, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/cache_view.h"

namespace strata::opencl {

// An item has four columns of each half of a row, a group as many rows as it has items for.
inline constexpr int kSaveItems = 256;

struct SaveCall {
  uint64_t kv_score, ape, positions, slots;
  int64_t kv_score_stride, ape_stride, num_tokens;
  CacheView state;
  int32_t ratio, half_columns;
  int32_t items, rows;  // of a row, of a group
  int32_t is_aligned;   // all rows at multiples of 16 bytes, and their halves
};

// An item of a group that makes entries has four channels.
inline constexpr int kEntryChannels = 4;
inline constexpr int kEntryTokens = 128;  // that a group has at most
// Ratio 128: a group pools a slice of the channels, each of its splits every 16th row.
inline constexpr int kPoolItems = 256, kPoolSlice = 64, kPoolSplits = kPoolItems / (kPoolSlice / kEntryChannels);

struct CompressCall {
  uint64_t block_table, token_to_req, positions, state_slots, out_slots, norm_weight, cos_sin;
  uint64_t pooled;  // of ratio 128: f32 [tokens, dim], rows of tokens that complete no entry unspecified
  int64_t block_stride, cos_sin_stride, num_tokens;
  CacheView state, cache;
  int32_t dim, rotary;
  int32_t tokens;      // of a group, one after the other
  int32_t is_aligned;  // rows of the state are at multiples of 16 bytes
  float eps;
  float hadamard_scale;  // 0: no Hadamard rotation
};

}  // namespace strata::opencl
