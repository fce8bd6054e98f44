// Divides a call of row attention among CTAs, from shapes alone, so that a captured graph stays valid when lengths change.
#pragma once

#include "backends/cuda/portable_attention/row_attention.h"

namespace strata::cuda {

struct RowAttentionPlan;

// One instantiation of the kernel. A CTA has `heads` (query token, head) pairs of a unit and loops over its rows, `rows` at a time.
struct RowAttentionTile {
  int32_t head_dim = 0, heads = 0, rows = 0;
  int32_t shared_bytes = 0, blocks_per_sm = 0;
  void (*launch)(const RowAttention&, const RowAttentionPlan&, cudaStream_t) = nullptr;
};

// The rows of a CTA are cut into splits, whose results combine_row_attention combines.
struct RowAttentionPlan {
  RowAttentionTile tile;
  Divisor head_rows{1};  // (token, head) pairs of one token, padding of batch_invariant included
  Divisor blocks_per_unit{1};
  int64_t num_blocks = 0;        // of one split
  int32_t num_splits = 1;        // at most; a block with few rows uses fewer
  int32_t min_tiles = 1;         // of a split
  float* partial_out = nullptr;  // [num_splits, tokens * H, 512], each normalised by its own sum
  float* partial_lse = nullptr;  // [num_splits, tokens * H], base 2; -inf: no rows
  float* partial_max = nullptr;  // [num_splits, tokens * H], base 2
};

inline constexpr int kRowValueDim = 512;  // dimensions of O in every CTA, and of partial results

RowAttentionPlan plan_row_attention(const RowAttention& a, const Capabilities& c);
void combine_row_attention(const RowAttention& a, const RowAttentionPlan& plan, cudaStream_t stream);

// instantiations/
RowAttentionTile row_attention_d512_heads16();
RowAttentionTile row_attention_d512_heads32();
RowAttentionTile row_attention_d512_heads64();
RowAttentionTile row_attention_d512_heads64_narrow();
RowAttentionTile row_attention_d576_heads16();
RowAttentionTile row_attention_d576_heads32();
RowAttentionTile row_attention_d576_heads64();

}  // namespace strata::cuda
