#include <algorithm>
#include <limits>

#include "backends/cuda/portable_attention/implementations.h"
#include "backends/cuda/sparse_attn_prefill/impls.h"

namespace strata::cuda {
namespace {

// The gathered rows are one page of bf16.
RowAttention row_attention(const SparseAttnPrefillParams& p) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  RowAttention a;
  a.q = p.q.ptr<Bf16>();
  a.out = p.out.ptr<Bf16>();
  a.lse = p.lse.ptr<float>();
  a.max_logits = p.max_logits.ptr<float>();
  a.sink = p.attn_sink.ptr<float>();
  a.q_stride = {p.q.stride[0], 0, p.q.stride[1]};
  a.out_stride = {p.out.stride[0], 0, p.out.stride[1]};
  a.lse_stride = {p.lse.stride[0], 0, p.lse.stride[1]};
  a.max_stride = {p.max_logits.stride[0], 0, p.max_logits.stride[1]};
  a.num_heads = static_cast<int32_t>(p.q.shape[1]);
  a.head_dim = static_cast<int32_t>(p.q.shape[2]);
  a.value_dim = static_cast<int32_t>(p.out.shape[2]);
  a.softmax_scale = p.softmax_scale;
  a.batch_invariant = p.batch_invariant;
  a.invariant_splits = 1;  // a prompt has tokens enough: splits of all of them would be gigabytes
  a.num_tokens = a.num_units = p.q.shape[0];
  RowScope& s = a.scopes[0];
  s.data = p.kv.ptr<uint8_t>();
  s.num_rows = static_cast<int32_t>(std::min(p.kv.shape[0], kMax));
  s.row_bytes = p.kv.stride[0] * 2;
  s.page_size = Divisor(static_cast<int32_t>(kMax));
  find_alignment(s);
  s.table = p.indices.ptr<int32_t>();
  s.table_batch = p.indices.stride[0];
  s.width = static_cast<int32_t>(p.indices.shape[1]);
  s.length = p.topk_length.ptr<int32_t>();
  a.max_rows[0] = p.indices.shape[1];
  return a;
}

}  // namespace

Implementation<SparseAttnPrefillParams> sparse_attn_prefill_smxx() { return row_attention_smxx<SparseAttnPrefillParams, row_attention>(); }
Implementation<SparseAttnPrefillParams> sparse_attn_prefill_generic() {
  return row_attention_generic<SparseAttnPrefillParams, row_attention>();
}

}  // namespace strata::cuda
