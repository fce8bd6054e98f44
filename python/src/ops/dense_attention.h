// Arguments of dense attention.
#pragma once

#include "strata/ops/dense_attention.h"

namespace strata::torch_ops {

template <class V>
void fields(V& v, DenseAttnDecodeParams& p) {
  v.in("q", p.q);
  v.cache_in("cache", p.cache);
  v.option("num_kv_heads", p.num_kv_heads);
  v.rows_of_slot("cache", p.cache, p.num_kv_heads);
  v.in("block_table", p.block_table);
  v.in("query_start_loc", p.query_start_loc);
  v.in("seq_lens", p.seq_lens);
  v.value("max_query_len", p.max_query_len);
  v.value("max_seq_len", p.max_seq_len);
  v.option("causal", p.causal);
  v.value("softmax_scale", p.softmax_scale);
  v.option("batch_invariant", p.batch_invariant);
  v.in_opt("schedule", p.schedule);
  v.out("out", p.out);
  v.out_opt("lse", p.lse);
}

template <class V>
void fields(V& v, DenseAttnPrefillParams& p) {
  v.in("q", p.q);
  v.in("k_nope", p.k_nope);
  v.in("k_pe", p.k_pe);
  v.in("v", p.v);
  v.in_opt("query_start_loc", p.query_start_loc);
  v.in_opt("key_start_loc", p.key_start_loc);
  v.value("max_query_len", p.max_query_len);
  v.value("max_key_len", p.max_key_len);
  v.option("causal", p.causal);
  v.value("softmax_scale", p.softmax_scale);
  v.out("out", p.out);
  v.out_opt("lse", p.lse);
}

}  // namespace strata::torch_ops
