// Arguments of qnorm_rope_kv_insert, quantize_and_insert_k and dequantize_and_gather_k.
#pragma once

#include "strata/ops/kv_insert.h"

namespace strata::torch_ops {

template <class V>
void fields(V& v, QNormRopeKvInsertParams& p) {
  v.in("q", p.q);
  v.in("kv", p.kv);
  v.in("positions", p.positions);
  v.in("cos_sin", p.cos_sin);
  v.in_opt("slot_mapping", p.slot_mapping);
  v.cache_out_opt("cache", p.cache);
  v.out("q_out", p.q_out);
  v.option("eps", p.eps);
  v.option("q_scale_inv", p.q_scale_inv);
}

template <class V>
void fields(V& v, QuantizeAndInsertKParams& p) {
  v.in("k", p.k);
  v.in("slot_mapping", p.slot_mapping);
  v.cache_out("cache", p.cache);
  v.option("ue8m0", p.ue8m0);
}

template <class V>
void fields(V& v, DequantizeAndGatherKParams& p) {
  v.cache_in("cache", p.cache);
  v.in("seq_lens", p.seq_lens);
  v.in_opt("gather_lens", p.gather_lens);
  v.in("block_table", p.block_table);
  v.option("offset", p.offset);
  v.out("out", p.out);
}

}  // namespace strata::torch_ops
