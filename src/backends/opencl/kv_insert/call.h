// The arguments of the cache-insert and gather kernels, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/cache_view.h"
#include "backends/opencl/device/divisor.h"

namespace strata::opencl {

// `runs` items per row. A group has as many rows as its items can cover.
inline constexpr int kInsertItems = 256;

// Inserts bf16 rows into a cache. A row's columns below `split` come from `first`, the others from `second`.
struct InsertCall {
  uint64_t slots, first, second;
  uint64_t positions, cos_sin;  // 0: no rotation
  int64_t num_slots, first_stride, second_stride, cos_sin_stride;
  CacheView cache;
  int32_t split;
  int32_t rotary;  // the last columns of a row
  int32_t shift;   // columns by which the first run begins before the row, so that no rotary pair is in two runs
  int32_t runs, rows;
  int32_t is_ue8m0, is_divided;
};

// Converts cache rows to bf16. The groups of a request take its rows round-robin.
inline constexpr int kGatherItems = 256;
inline constexpr int kGatherRows = 4;  // in flight per item of gather_aligned

struct GatherCall {
  uint64_t seq_lens, gather_lens, block_table, out;
  int64_t block_stride, out_stride[2], offset;
  CacheView cache;
  Divisor page_size;
  int32_t groups;  // per request
  int32_t runs, rows;
  int32_t e4m3_runs;  // gather_aligned: runs of e4m3 values per row; the others are bf16
  int32_t row_bytes;
};

// 16 items per head, four heads per group.
inline constexpr int kQueryItems = 64, kQueryRowItems = 16, kQueryHeads = kQueryItems / kQueryRowItems;

struct QueryCall {
  uint64_t q, out, positions, cos_sin;
  int64_t q_stride[2], out_stride[2], cos_sin_stride;
  int32_t groups;  // per token
  int32_t heads, padded_heads, dim, rotary, shift;
  int32_t is_aligned;  // all runs of q are whole and begin at multiples of 16 bytes
  int32_t is_e4m3;
  float eps, scale_inv;
};

}  // namespace strata::opencl
