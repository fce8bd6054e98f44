// Arguments of sparse attention.
#pragma once

#include "strata/ops/sparse_attention.h"

namespace strata::torch_ops {

template <class V>
void fields(V& v, QueryNormRope& p) {
  v.in("positions", p.positions);
  v.in("cos_sin", p.cos_sin);
  v.option("eps", p.eps);
}

template <class V>
void fields(V& v, InverseRope& p) {
  v.in("positions", p.positions);
  v.in("cos_sin", p.cos_sin);
}

template <class V>
void fields(V& v, SparseAttnDecodeParams& p) {
  v.in("q", p.q);
  v.cache_in("cache", p.cache);
  v.in("indices", p.indices);
  v.in_opt("topk_length", p.topk_length);
  v.cache_in_opt("extra_cache", p.extra_cache);
  v.in_opt("extra_indices", p.extra_indices);
  v.in_opt("extra_topk_length", p.extra_topk_length);
  v.in_opt("attn_sink", p.attn_sink);
  v.value("softmax_scale", p.softmax_scale);
  v.option("batch_invariant", p.batch_invariant);
  v.in_opt("schedule", p.schedule);
  v.group("query_prologue", p.query_prologue);
  v.group("out_epilogue", p.out_epilogue);
  v.out("out", p.out);
  v.out_opt("lse", p.lse);
  v.out_opt("max_logits", p.max_logits);
}

template <class V>
void fields(V& v, SparseAttnPrefillParams& p) {
  v.in("q", p.q);
  v.in("kv", p.kv);
  v.in("indices", p.indices);
  v.in_opt("topk_length", p.topk_length);
  v.in_opt("attn_sink", p.attn_sink);
  v.value("softmax_scale", p.softmax_scale);
  v.option("batch_invariant", p.batch_invariant);
  v.out("out", p.out);
  v.out_opt("lse", p.lse);
  v.out_opt("max_logits", p.max_logits);
}

template <class V>
void fields(V& v, MergeAttnStatesParams& p) {
  v.in("o", p.o);
  v.in("lse", p.lse);
  v.in_opt("attn_sink", p.attn_sink);
  v.value("empty_lse", p.empty_lse);
  v.out("out", p.out);
  v.out_opt("lse_out", p.lse_out);
}

}  // namespace strata::torch_ops
