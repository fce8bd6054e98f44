#include "strata/c/ops/mla.h"

#include "c_api/op_call.h"

namespace strata::c_api {

STRATA_STRUCT(strata_mla_rope_kv_insert_params, 728);
STRATA_STRUCT(strata_indexer_key_insert_params, 568);

MlaRopeKvInsertParams to_params(const strata_mla_rope_kv_insert_params& c, CallReader& in) {
  return {.q = in.view(c.q, "q"),
          .c = in.view(c.c, "c"),
          .k_pe = in.view(c.k_pe, "k_pe"),
          .positions = in.view(c.positions, "positions"),
          .cos_sin = in.view(c.cos_sin, "cos_sin"),
          .llama_4_scaling = in.view(c.llama_4_scaling, "llama_4_scaling"),
          .q_pe_out = in.view(c.q_pe_out, "q_pe_out"),
          .slot_mapping = in.view(c.slot_mapping, "slot_mapping"),
          .cache = in.cache(c.cache, "cache"),
          .ue8m0 = to_bool(c.ue8m0, "ue8m0")};
}

IndexerKeyInsertParams to_params(const strata_indexer_key_insert_params& c, CallReader& in) {
  return {.k = in.view(c.k, "k"),
          .weight = in.view(c.weight, "weight"),
          .bias = in.view(c.bias, "bias"),
          .eps = c.eps,
          .positions = in.view(c.positions, "positions"),
          .cos_sin = in.view(c.cos_sin, "cos_sin"),
          .pairing = to_enum(c.pairing, RopePairing::half_split, "pairing"),
          .rope_slice = to_enum(c.rope_slice, RopeSlice::first, "rope_slice"),
          .hadamard = to_bool(c.hadamard, "hadamard"),
          .slot_mapping = in.view(c.slot_mapping, "slot_mapping"),
          .cache = in.cache(c.cache, "cache")};
}

}  // namespace strata::c_api

STRATA_C_OP(mla_rope_kv_insert);
STRATA_C_OP(indexer_key_insert);
