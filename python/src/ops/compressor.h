// Arguments of the compressor's ops.
#pragma once

#include "strata/ops/compressor.h"

namespace strata::torch_ops {

template <class V>
void fields(V& v, SavePartialStatesParams& p) {
  v.in("kv_score", p.kv_score);
  v.in("ape", p.ape);
  v.in("positions", p.positions);
  v.in("state_slots", p.state_slots);
  v.cache_out("state", p.state);
}

template <class V>
void fields(V& v, StateSave& p) {
  v.in("kv_score", p.kv_score);
  v.in("ape", p.ape);
}

// The state is written by the prologue alone.
template <class V>
void fields(V& v, CompressNormRopeStoreParams& p) {
  v.group("save_prologue", p.save_prologue);
  v.cache_out("state", p.state);
  v.in("block_table", p.block_table);
  v.in("token_to_req", p.token_to_req);
  v.in("positions", p.positions);
  v.in("state_slots", p.state_slots);
  v.in("out_slots", p.out_slots);
  v.option("ratio", p.ratio);
  v.in("norm_weight", p.norm_weight);
  v.option("eps", p.eps);
  v.in("cos_sin", p.cos_sin);
  v.cache_out("cache", p.cache);
  v.option("hadamard", p.hadamard);
}

}  // namespace strata::torch_ops
