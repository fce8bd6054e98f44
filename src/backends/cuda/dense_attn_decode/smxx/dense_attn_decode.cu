#include <algorithm>

#include "backends/cuda/dense_attn_decode/impls.h"
#include "backends/cuda/portable_attention/implementations.h"

namespace strata::cuda {
namespace {

RowAttention dense_row_attention(const DenseAttnDecodeParams& p) {
  RowAttention a;
  a.q = p.q.ptr<Bf16>();
  a.out = p.out.ptr<Bf16>();
  a.lse = p.lse.ptr<float>();
  a.q_stride = {p.q.stride[0], 0, p.q.stride[1]};
  a.out_stride = {p.out.stride[0], 0, p.out.stride[1]};
  a.lse_stride = {p.lse.stride[0], 0, p.lse.stride[1]};
  a.num_heads = static_cast<int32_t>(p.q.shape[1]);
  a.head_dim = static_cast<int32_t>(p.q.shape[2]);
  a.value_dim = static_cast<int32_t>(p.out.shape[2]);
  a.softmax_scale = p.softmax_scale;
  a.num_tokens = p.q.shape[0];
  a.num_units = p.seq_lens.shape[0];
  a.max_queries = std::min(p.max_query_len, std::max<int64_t>(p.q.shape[0], 1));
  a.batch_invariant = p.batch_invariant;
  RowScope& s = a.scopes[0] = row_scope(p.cache);
  s.num_rows = static_cast<int32_t>(p.cache.num_pages);
  s.table = p.block_table.ptr<int32_t>();
  s.table_batch = p.block_table.stride[0];
  a.max_rows[0] = p.max_seq_len;
  a.query_start_loc = p.query_start_loc.ptr<int32_t>();
  a.seq_lens = p.seq_lens.ptr<int32_t>();
  a.causal = p.causal ? 1 : 0;
  return a;
}

}  // namespace

Implementation<DenseAttnDecodeParams> dense_attn_decode_smxx() { return row_attention_smxx<DenseAttnDecodeParams, dense_row_attention>(); }
Implementation<DenseAttnDecodeParams> dense_attn_decode_generic() {
  return row_attention_generic<DenseAttnDecodeParams, dense_row_attention>();
}

}  // namespace strata::cuda
