// The arguments of the kernels of kv_insert, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/cache_view.h"
#include "backends/opencl/device/divisor.h"

namespace strata::opencl {

// A row has `runs` items, a group as many rows as it has items for.
inline constexpr int kInsertItems = 256;

// Rows of bf16 into a cache. A row's columns below `split` are in `first`, the others in `second`.
struct InsertCall {
  uint64_t slots, first, second;
  uint64_t positions, cos_sin;  // 0: no rotation
  int64_t num_slots, first_stride, second_stride, cos_sin_stride;
  CacheView cache;
  int32_t split;
  int32_t rotary;  // the last of the columns
  int32_t shift;   // columns that the first run begins before the row, so that no pair is in two runs
  int32_t runs, rows;
  int32_t is_ue8m0, is_divided;
};

// Rows of a cache to bf16. The groups of a request take its rows round-robin.
inline constexpr int kGatherItems = 256;
inline constexpr int kGatherRows = 4;  // that an item of gather_aligned has in flight

struct GatherCall {
  uint64_t seq_lens, gather_lens, block_table, out;
  int64_t block_stride, out_stride[2], offset;
  CacheView cache;
  Divisor page_size;
  int32_t groups;  // of a request
  int32_t runs, rows;
  int32_t code_runs;  // gather_aligned: of a row, those of e4m3; the others are bf16
  int32_t row_bytes;
};

// A head has 16 items, a group four heads.
inline constexpr int kQueryItems = 64, kQueryRowItems = 16, kQueryHeads = kQueryItems / kQueryRowItems;

struct QueryCall {
  uint64_t q, out, positions, cos_sin;
  int64_t q_stride[2], out_stride[2], cos_sin_stride;
  int32_t groups;  // of a token
  int32_t heads, padded_heads, dim, rotary, shift;
  int32_t is_aligned;  // runs of q are whole and at multiples of 16 bytes
  int32_t is_e4m3;
  float eps, scale_inv;
};

}  // namespace strata::opencl
