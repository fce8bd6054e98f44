// What the attention kernels over rows that all heads share have in common, for host and device code.
#pragma once

#include <cstdint>

#include "backends/opencl/device/cache_view.h"

namespace strata::opencl {

inline constexpr int kAttnItems = 256;
inline constexpr int kAttnHeads = 16;    // of a group
inline constexpr int kAttnRows = 16;     // of a tile
inline constexpr int kAttnValues = 512;  // columns of the values that a group has
inline constexpr int kCombineItems = 64;
inline constexpr int kMatrixSubgroups = 16;  // of a group, where the matrix engine multiplies

// Elements between entries of the batch, tokens of an entry, heads.
struct TokenStride {
  int64_t entry, token, head;
};

// A launch's work. A split of a token's rows leaves its sums in the workspace where there is more than one split.
struct AttnWork {
  uint64_t sums, statistics;  // f32 [tokens, heads, splits, sum_stride], and [tokens, heads, splits, 2]: maximum, sum of weights
  int64_t first_token;
  int32_t head_tiles, splits, sum_stride;
};

// Queries and results.
struct RowAttention {
  uint64_t q, sink, out, lse, max_logits;  // 0 where absent
  TokenStride q_stride, out_stride, lse_stride, max_stride;
  int32_t queries;  // tokens of an entry
  int32_t num_heads, head_dim, value_dim;
  int32_t is_q_aligned, is_out_aligned;  // heads begin at multiples of 16 bytes
  float scale;
  AttnWork work;
};

// A cache and the rows that are attended.
struct AttnScope {
  CacheView cache;
  uint64_t indices, lengths;  // lengths: 0 where absent
  int64_t entry_stride, token_stride;
  int32_t width;
};

struct SparseAttnDecodeCall {
  RowAttention attention;
  AttnScope main, extra;  // extra.width: 0 where absent
};

struct SparseAttnPrefillCall {
  RowAttention attention;
  uint64_t kv, indices, lengths;  // lengths: 0 where absent
  int64_t kv_stride, indices_stride;
  int32_t num_rows, width;
};

struct DenseAttnDecodeCall {
  RowAttention attention;
  CacheView cache;
  uint64_t block_table, query_start, seq_lens;
  int64_t table_stride;
  int32_t num_requests;
};

}  // namespace strata::opencl
