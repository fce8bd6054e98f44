#include "strata/c/ops/indexer.h"

#include "c_api/op_call.h"

namespace strata::c_api {

STRATA_STRUCT(strata_indexer_query_params, 648);
STRATA_STRUCT(strata_indexer_logits_params, 632);
STRATA_STRUCT(strata_topk_select_params, 272);
STRATA_STRUCT(strata_indexer_query_prologue, 384);
STRATA_STRUCT(strata_topk_slots, 280);
STRATA_STRUCT(strata_indexer_topk_params, 656);

IndexerQueryParams to_params(const strata_indexer_query_params& c, CallReader& in) {
  return {.q = in.view(c.q, "q"),
          .weights = in.view(c.weights, "weights"),
          .positions = in.view(c.positions, "positions"),
          .cos_sin = in.view(c.cos_sin, "cos_sin"),
          .pairing = to_enum(c.pairing, RopePairing::half_split, "pairing"),
          .rope_slice = to_enum(c.rope_slice, RopeSlice::first, "rope_slice"),
          .hadamard = to_bool(c.hadamard, "hadamard"),
          .softmax_scale = c.softmax_scale,
          .head_scale = c.head_scale,
          .amax_floor = c.amax_floor,
          .q_out = in.view(c.q_out, "q_out"),
          .q_scale_out = in.view(c.q_scale_out, "q_scale_out"),
          .weights_out = in.view(c.weights_out, "weights_out")};
}

IndexerLogitsParams to_params(const strata_indexer_logits_params& c, CallReader& in) {
  return {.q = in.view(c.q, "q"),
          .q_scale = in.view(c.q_scale, "q_scale"),
          .weights = in.view(c.weights, "weights"),
          .cache = in.cache(c.cache, "cache"),
          .block_table = in.view(c.block_table, "block_table"),
          .token_to_req = in.view(c.token_to_req, "token_to_req"),
          .lengths = in.view(c.lengths, "lengths"),
          .logits = in.view(c.logits, "logits")};
}

TopkSelectParams to_params(const strata_topk_select_params& c, CallReader& in) {
  return {.logits = in.view(c.logits, "logits"),
          .lengths = in.view(c.lengths, "lengths"),
          .topk_indices = in.view(c.topk_indices, "topk_indices")};
}

IndexerQueryPrologue to_indexer_query_prologue(const strata_indexer_query_prologue& c, CallReader& in) {
  return {.q = in.view(c.q, "query_prologue: q"),
          .weights = in.view(c.weights, "query_prologue: weights"),
          .positions = in.view(c.positions, "query_prologue: positions"),
          .cos_sin = in.view(c.cos_sin, "query_prologue: cos_sin"),
          .pairing = to_enum(c.pairing, RopePairing::half_split, "query_prologue: pairing"),
          .rope_slice = to_enum(c.rope_slice, RopeSlice::first, "query_prologue: rope_slice"),
          .hadamard = to_bool(c.hadamard, "query_prologue: hadamard"),
          .softmax_scale = c.softmax_scale,
          .head_scale = c.head_scale,
          .amax_floor = c.amax_floor};
}

TopkSlots to_topk_slots(const strata_topk_slots& c, CallReader& in) {
  return {.block_table = in.view(c.block_table, "slots_epilogue: block_table"),
          .page_size = c.page_size,
          .slots = in.view(c.slots, "slots_epilogue: slots"),
          .lens = in.view(c.lens, "slots_epilogue: lens")};
}

IndexerTopkParams to_params(const strata_indexer_topk_params& c, CallReader& in) {
  return {.q = in.view(c.q, "q"),
          .q_scale = in.view(c.q_scale, "q_scale"),
          .weights = in.view(c.weights, "weights"),
          .cache = in.cache(c.cache, "cache"),
          .block_table = in.view(c.block_table, "block_table"),
          .token_to_req = in.view(c.token_to_req, "token_to_req"),
          .lengths = in.view(c.lengths, "lengths"),
          .query_prologue = in.optional(c.query_prologue, "query_prologue", to_indexer_query_prologue),
          .max_length = c.max_length,
          .topk_indices = in.view(c.topk_indices, "topk_indices"),
          .slots_epilogue = in.optional(c.slots_epilogue, "slots_epilogue", to_topk_slots)};
}

}  // namespace strata::c_api

STRATA_C_OP(indexer_query);
STRATA_C_OP(indexer_logits);
STRATA_C_OP(topk_select);
STRATA_C_OP(indexer_topk);
