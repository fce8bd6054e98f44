// Arguments of rms_norm_pair.
#pragma once

#include "strata/ops/norm.h"

namespace strata::torch_ops {

template <class V>
void fields(V& v, KeyInsert& p) {
  v.in("slot_mapping", p.slot_mapping);
  v.in("positions", p.positions);
  v.in("cos_sin", p.cos_sin);
  v.cache_out("cache", p.cache);
}

template <class V>
void fields(V& v, RmsNormPairParams& p) {
  v.in_opt("q", p.q);
  v.in_opt("q_weight", p.q_weight);
  v.out_opt("q_out", p.q_out);
  v.out_opt("q_scale", p.q_scale);
  v.option("q_format", p.q_format);
  v.in("kv", p.kv);
  v.in("kv_weight", p.kv_weight);
  v.out_opt("kv_out", p.kv_out);
  v.option("eps", p.eps);
  v.group("insert_epilogue", p.insert_epilogue);
}

}  // namespace strata::torch_ops
