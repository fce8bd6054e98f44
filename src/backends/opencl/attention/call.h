// Arguments of the attention kernels over rows that all heads share, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/cache_view.h"

namespace strata::opencl {

inline constexpr int kAttnItems = 256;
inline constexpr int kAttnHeads = 16;    // per group
inline constexpr int kAttnRows = 16;     // per tile
inline constexpr int kAttnValues = 512;  // value columns per group
inline constexpr int kCombineItems = 64;
inline constexpr int kMatrixSubgroups = 16;  // per group of the matrix kernels

// Strides in elements, between batch entries, tokens of an entry, and heads.
struct TokenStride {
  int64_t entry, token, head;
};

// A launch's work. If there is more than one split, each split leaves its sums in the workspace.
struct AttnWork {
  uint64_t sums, statistics;  // f32 [tokens, heads, splits, sum_stride]; [tokens, heads, splits, 2]: maximum, sum of weights
  int64_t first_token;
  int32_t head_tiles, splits, sum_stride;
};

// Queries and results.
struct RowAttention {
  uint64_t q, sink, out, lse, max_logits;  // 0: absent
  TokenStride q_stride, out_stride, lse_stride, max_stride;
  int32_t queries;  // tokens per batch entry
  int32_t num_heads, head_dim, value_dim;
  int32_t is_q_aligned, is_out_aligned;  // heads begin at multiples of 16 bytes
  float scale;
  AttnWork work;
};

// A cache and the rows of it that are attended.
struct AttnScope {
  CacheView cache;
  uint64_t indices, lengths;  // lengths may be 0: absent
  int64_t entry_stride, token_stride;
  int32_t width;
};

struct SparseAttnDecodeCall {
  RowAttention attention;
  AttnScope main, extra;  // extra.width is 0 if there is no second scope
};

struct SparseAttnPrefillCall {
  RowAttention attention;
  uint64_t kv, indices, lengths;  // lengths may be 0: absent
  int64_t kv_stride, indices_stride;
  int32_t num_rows, width;
};

struct DenseAttnDecodeCall {
  RowAttention attention;
  CacheView cache;
  uint64_t block_table, query_start, seq_lens;
  int64_t table_stride;
  int32_t num_requests;
  int32_t is_causal;
};

}  // namespace strata::opencl
