// The arguments of the indexer's kernels, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/divisor.h"

namespace strata::opencl {

// A group has heads of one token. An item has 8 consecutive values, or 16 in the kernels for heads of 128 values. The number of items per
// head is a power of two.
inline constexpr int kQueryItems = 128;

enum class QueryValues : int32_t { e4m3, mxfp4, bf16 };

struct IndexerQueryCall {
  uint64_t q, weights, positions, cos_sin, q_out, q_scale_out, weights_out;
  int64_t token_stride, head_stride, weights_stride, cos_sin_stride;  // in elements
  int32_t heads, dim;
  int32_t items_log2;            // items per head
  int32_t rotary, first_rotary;  // 0: no rotation
  int32_t is_half_split, is_hadamard;
  int32_t is_aligned;  // heads of q and q_out begin at multiples of the bytes of 8 values
  int32_t has_bf16_weights;
  QueryValues values;
  float softmax_scale, head_scale, amax_floor;
};

// A group scores tiles of keys for one token, kHeadTile heads at a time.
inline constexpr int kHeadTile = 64;
inline constexpr int kManyKeys = 128, kManyItems = 256;  // 8 keys x 4 heads per item
inline constexpr int kFewKeys = 32, kFewItems = 128;     // 4 keys x 4 heads per item

// On the matrix engine, a sub-group scores 16 keys of 128 dimensions for up to 64 heads at a time.
inline constexpr int kMatrixLogitsSubgroups = 8, kMatrixLogitsKeys = 16, kMatrixLogitsDim = 128;

enum class KeyFormat : int32_t { e4m3, mxfp4, bf16 };

struct IndexerLogitsCall {
  uint64_t q, q_scale, weights, cache, block_table, token_to_req, lengths, logits;
  int64_t page_stride, table_stride, logits_stride;
  Divisor page_size;
  int32_t row_bytes, scale_bytes;  // per key, and per head of a query
  int32_t heads, dim;
  int32_t skip;  // tokens with at most `skip` candidates are not scored
  KeyFormat format;
};

// One group per row.
inline constexpr int kSelectItems = 256;

struct TopkSelectCall {
  uint64_t logits, lengths, topk_indices;
  int64_t logits_stride, topk_stride;  // in elements
  int32_t k;
  int32_t is_aligned;  // rows of logits begin at multiples of 16 bytes
};

}  // namespace strata::opencl
