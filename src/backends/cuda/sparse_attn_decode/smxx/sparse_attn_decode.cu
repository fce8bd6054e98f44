#include "backends/cuda/portable_attention/implementations.h"
#include "backends/cuda/sparse_attn_decode/impls.h"

namespace strata::cuda {
namespace {

void add_scope(RowAttention& a, int scope, const PagedCache& cache, const TensorView& indices, const TensorView& length) {
  RowScope& s = a.scopes[scope] = row_scope(cache);
  s.table = indices.ptr<int32_t>();
  s.table_batch = indices.stride[0];
  s.table_query = indices.stride[1];
  s.width = static_cast<int32_t>(indices.shape[2]);
  s.length = length.ptr<int32_t>();
  a.max_rows[scope] = indices.shape[2];
}

RowAttention row_attention(const SparseAttnDecodeParams& p) {
  RowAttention a;
  a.q = p.q.ptr<Bf16>();
  a.out = p.out.ptr<Bf16>();
  a.lse = p.lse.ptr<float>();
  a.max_logits = p.max_logits.ptr<float>();
  a.sink = p.attn_sink.ptr<float>();
  a.q_stride = {p.q.stride[0], p.q.stride[1], p.q.stride[2]};
  a.out_stride = {p.out.stride[0], p.out.stride[1], p.out.stride[2]};
  a.lse_stride = {p.lse.stride[0], p.lse.stride[2], p.lse.stride[1]};
  a.max_stride = {p.max_logits.stride[0], p.max_logits.stride[2], p.max_logits.stride[1]};
  a.queries_per_batch = Divisor(static_cast<int32_t>(p.q.shape[1] > 0 ? p.q.shape[1] : 1));
  a.num_heads = static_cast<int32_t>(p.q.shape[2]);
  a.head_dim = static_cast<int32_t>(p.q.shape[3]);
  a.value_dim = static_cast<int32_t>(p.out.shape[3]);
  a.softmax_scale = p.softmax_scale;
  a.num_tokens = a.num_units = p.q.shape[0] * p.q.shape[1];
  a.batch_invariant = p.batch_invariant;
  add_scope(a, 0, p.cache, p.indices, p.topk_length);
  if (p.extra_cache.present()) {
    a.num_scopes = 2;
    add_scope(a, 1, p.extra_cache, p.extra_indices, p.extra_topk_length);
  }
  return a;
}

}  // namespace

Implementation<SparseAttnDecodeParams> sparse_attn_decode_smxx() { return row_attention_smxx<SparseAttnDecodeParams, row_attention>(); }
Implementation<SparseAttnDecodeParams> sparse_attn_decode_generic() {
  return row_attention_generic<SparseAttnDecodeParams, row_attention>();
}

}  // namespace strata::cuda
