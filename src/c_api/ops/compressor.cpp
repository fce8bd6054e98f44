#include "strata/c/ops/compressor.h"

#include "c_api/op_call.h"

namespace strata::c_api {

STRATA_STRUCT(strata_save_partial_states_params, 368);
STRATA_STRUCT(strata_state_save, 184);
STRATA_STRUCT(strata_compress_norm_rope_store_params, 672);

SavePartialStatesParams to_params(const strata_save_partial_states_params& c, CallReader& in) {
  return {.kv_score = in.view(c.kv_score, "kv_score"),
          .ape = in.view(c.ape, "ape"),
          .positions = in.view(c.positions, "positions"),
          .state_slots = in.view(c.state_slots, "state_slots"),
          .state = in.cache(c.state, "state")};
}

StateSave to_state_save(const strata_state_save& c, CallReader& in) {
  return {.kv_score = in.view(c.kv_score, "save_prologue: kv_score"), .ape = in.view(c.ape, "save_prologue: ape")};
}

CompressNormRopeStoreParams to_params(const strata_compress_norm_rope_store_params& c, CallReader& in) {
  return {.save_prologue = in.optional(c.save_prologue, "save_prologue", to_state_save),
          .state = in.cache(c.state, "state"),
          .block_table = in.view(c.block_table, "block_table"),
          .token_to_req = in.view(c.token_to_req, "token_to_req"),
          .positions = in.view(c.positions, "positions"),
          .state_slots = in.view(c.state_slots, "state_slots"),
          .out_slots = in.view(c.out_slots, "out_slots"),
          .ratio = c.ratio,
          .norm_weight = in.view(c.norm_weight, "norm_weight"),
          .eps = c.eps,
          .cos_sin = in.view(c.cos_sin, "cos_sin"),
          .cache = in.cache(c.cache, "cache"),
          .hadamard = to_bool(c.hadamard, "hadamard")};
}

}  // namespace strata::c_api

STRATA_C_OP(save_partial_states);
STRATA_C_OP(compress_norm_rope_store);
