// Arguments of the indexer's ops.
#pragma once

#include "strata/ops/indexer.h"

namespace strata::torch_ops {

template <class V>
void fields(V& v, IndexerQueryParams& p) {
  v.in("q", p.q);
  v.in("weights", p.weights);
  v.in("positions", p.positions);
  v.in_opt("cos_sin", p.cos_sin);
  v.option("pairing", p.pairing);
  v.option("rope_slice", p.rope_slice);
  v.option("hadamard", p.hadamard);
  v.value("softmax_scale", p.softmax_scale);
  v.value("head_scale", p.head_scale);
  v.option("amax_floor", p.amax_floor);
  v.out("q_out", p.q_out);
  v.out_opt("q_scale_out", p.q_scale_out, DType::e8m0);
  v.out("weights_out", p.weights_out);
}

template <class V>
void fields(V& v, IndexerLogitsParams& p) {
  v.in("q", p.q);
  v.in_opt("q_scale", p.q_scale, DType::e8m0);
  v.in("weights", p.weights);
  v.cache_in("cache", p.cache);
  v.in("block_table", p.block_table);
  v.in("token_to_req", p.token_to_req);
  v.in("lengths", p.lengths);
  v.out("logits", p.logits);
}

template <class V>
void fields(V& v, TopkSelectParams& p) {
  v.in("logits", p.logits);
  v.in("lengths", p.lengths);
  v.out("topk_indices", p.topk_indices);
}

template <class V>
void fields(V& v, IndexerQueryPrologue& p) {
  v.in("q", p.q);
  v.in("weights", p.weights);
  v.in("positions", p.positions);
  v.in_opt("cos_sin", p.cos_sin);
  v.option("pairing", p.pairing);
  v.option("rope_slice", p.rope_slice);
  v.option("hadamard", p.hadamard);
  v.value("softmax_scale", p.softmax_scale);
  v.value("head_scale", p.head_scale);
  v.option("amax_floor", p.amax_floor);
}

template <class V>
void fields(V& v, TopkSlots& p) {
  v.in("block_table", p.block_table);
  v.value("page_size", p.page_size);
  v.out("slots", p.slots);
  v.out("lens", p.lens);
}

template <class V>
void fields(V& v, IndexerTopkParams& p) {
  v.in_opt("q", p.q);
  v.in_opt("q_scale", p.q_scale, DType::e8m0);
  v.in_opt("weights", p.weights);
  v.cache_in_opt("cache", p.cache);
  v.in_opt("block_table", p.block_table);
  v.in_opt("token_to_req", p.token_to_req);
  v.in("lengths", p.lengths);
  v.group("query_prologue", p.query_prologue);
  v.value("max_length", p.max_length);
  v.out("topk_indices", p.topk_indices);
  v.group("slots_epilogue", p.slots_epilogue);
}

}  // namespace strata::torch_ops
