// Arguments of the ops that prepare the queries and keys of MLA.
#pragma once

#include "strata/ops/mla.h"

namespace strata::torch_ops {

template <class V>
void fields(V& v, MlaRopeKvInsertParams& p) {
  v.out("q", p.q);
  v.in("c", p.c);
  v.out("k_pe", p.k_pe);
  v.in_opt("positions", p.positions);
  v.in_opt("cos_sin", p.cos_sin);
  v.in_opt("llama_4_scaling", p.llama_4_scaling);
  v.out_opt("q_pe_out", p.q_pe_out);
  v.in_opt("slot_mapping", p.slot_mapping);
  v.cache_out_opt("cache", p.cache);
  v.option("ue8m0", p.ue8m0);
}

template <class V>
void fields(V& v, IndexerKeyInsertParams& p) {
  v.in("k", p.k);
  v.in("weight", p.weight);
  v.in("bias", p.bias);
  v.option("eps", p.eps);
  v.in_opt("positions", p.positions);
  v.in_opt("cos_sin", p.cos_sin);
  v.option("pairing", p.pairing);
  v.option("rope_slice", p.rope_slice);
  v.option("hadamard", p.hadamard);
  v.in("slot_mapping", p.slot_mapping);
  v.cache_out("cache", p.cache);
}

}  // namespace strata::torch_ops
