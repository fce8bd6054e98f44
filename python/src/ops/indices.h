// Arguments of the ops that generate indices.
#pragma once

#include "strata/ops/indices.h"

namespace strata::torch_ops {

template <class V>
void fields(V& v, ScatterBlockTablesParams& p) {
  v.in("entries", p.entries);
  v.in("segments", p.segments);
  v.out("block_table", p.block_table);
}

template <class V>
void fields(V& v, SlotMappingParams& p) {
  v.in("positions", p.positions);
  v.in("token_to_req", p.token_to_req);
  v.in_opt("is_valid_token", p.is_valid_token);
  v.in("block_table", p.block_table);
  v.value("page_size", p.page_size);
  v.option("ratio", p.ratio);
  v.out("slot_mapping", p.slot_mapping);
}

template <class V>
void fields(V& v, SwaIndicesParams& p) {
  v.in("positions", p.positions);
  v.in("token_to_req", p.token_to_req);
  v.in_opt("is_valid_token", p.is_valid_token);
  v.in("block_table", p.block_table);
  v.value("page_size", p.page_size);
  v.option("window", p.window);
  v.out("indices", p.indices);
  v.out("lens", p.lens);
}

template <class V>
void fields(V& v, CompressedIndicesParams& p) {
  v.in("positions", p.positions);
  v.in_opt("token_to_req", p.token_to_req);
  v.in_opt("is_valid_token", p.is_valid_token);
  v.in_opt("block_table", p.block_table);
  v.option("page_size", p.page_size);
  v.option("ratio", p.ratio);
  v.out("indices", p.indices);
  v.out("lens", p.lens);
}

template <class V>
void fields(V& v, ComputeGlobalTopkParams& p) {
  v.in("topk_indices", p.topk_indices);
  v.in("token_to_req", p.token_to_req);
  v.in_opt("is_valid_token", p.is_valid_token);
  v.in("block_table", p.block_table);
  v.value("page_size", p.page_size);
  v.out("global_indices", p.global_indices);
  v.out("lens", p.lens);
}

template <class V>
void fields(V& v, CombineTopkSwaParams& p) {
  v.in_opt("topk_indices", p.topk_indices);
  v.in("query_start_loc", p.query_start_loc);
  v.in("seq_lens", p.seq_lens);
  v.in("gather_lens", p.gather_lens);
  v.option("window", p.window);
  v.option("ratio", p.ratio);
  v.option("top_k", p.top_k);
  v.value("m", p.m);
  v.value("n", p.n);
  v.out("combined_indices", p.combined_indices);
  v.out("combined_lens", p.combined_lens);
}

}  // namespace strata::torch_ops
