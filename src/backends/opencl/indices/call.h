// The arguments of the kernels of indices.clcpp, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/divisor.h"

namespace strata::opencl {

inline constexpr int kIndexItems = 256;
inline constexpr int kScatterItems = 128, kSlotItems = 128;
inline constexpr int kIndexRun = 4;  // consecutive columns that an item loads and stores at once

// Rows of i32 indices that a kernel writes. 2^log2_row_items items of a group share a row.
struct IndexRows {
  uint64_t data, lens;
  int64_t stride, count;
  int32_t width, log2_row_items;
  int32_t is_wide;  // all rows read and written begin at multiples of 16 bytes and consist of whole runs
};

// Every token's request and its pages. An invalid token may have any request number.
struct TokenPages {
  uint64_t token_to_req;
  uint64_t is_valid_token;  // 0: all valid
  uint64_t block_table;     // 0: none
  int64_t table_stride;
};

struct ScatterBlockTablesCall {
  uint64_t entries, segments, block_table;
  int64_t table_stride;
};

struct SlotMappingCall {
  TokenPages tokens;
  uint64_t positions, slot_mapping;
  int64_t num_tokens;
  int32_t ratio;
  Divisor page_size;
};

struct SwaIndicesCall {
  TokenPages tokens;
  IndexRows rows;
  uint64_t positions;
  Divisor page_size;
};

struct CompressedIndicesCall {
  TokenPages tokens;
  IndexRows rows;
  uint64_t positions;
  Divisor page_size, ratio;
};

struct ComputeGlobalTopkCall {
  TokenPages tokens;
  IndexRows rows;
  uint64_t topk_indices;  // may be rows.data
  int64_t topk_stride;
  int32_t max_blocks;
  Divisor page_size;
};

struct CombineTopkSwaCall {
  IndexRows rows;
  uint64_t topk_indices, query_start_loc, seq_lens, gather_lens;
  int64_t topk_stride, m, n;
  int32_t num_requests, window, top_k;
  Divisor ratio;
};

}  // namespace strata::opencl
