#include "strata/c/ops/kv_insert.h"

#include "c_api/op_call.h"

namespace strata::c_api {

STRATA_STRUCT(strata_qnorm_rope_kv_insert_params, 552);
STRATA_STRUCT(strata_quantize_and_insert_k_params, 200);
STRATA_STRUCT(strata_dequantize_and_gather_k_params, 376);

QNormRopeKvInsertParams to_params(const strata_qnorm_rope_kv_insert_params& c, CallReader& in) {
  return {.q = in.view(c.q, "q"),
          .kv = in.view(c.kv, "kv"),
          .positions = in.view(c.positions, "positions"),
          .cos_sin = in.view(c.cos_sin, "cos_sin"),
          .slot_mapping = in.view(c.slot_mapping, "slot_mapping"),
          .cache = in.cache(c.cache, "cache"),
          .q_out = in.view(c.q_out, "q_out"),
          .eps = c.eps,
          .q_scale_inv = c.q_scale_inv};
}

QuantizeAndInsertKParams to_params(const strata_quantize_and_insert_k_params& c, CallReader& in) {
  return {.k = in.view(c.k, "k"),
          .slot_mapping = in.view(c.slot_mapping, "slot_mapping"),
          .cache = in.cache(c.cache, "cache"),
          .ue8m0 = to_bool(c.ue8m0, "ue8m0")};
}

DequantizeAndGatherKParams to_params(const strata_dequantize_and_gather_k_params& c, CallReader& in) {
  return {.cache = in.cache(c.cache, "cache"),
          .seq_lens = in.view(c.seq_lens, "seq_lens"),
          .gather_lens = in.view(c.gather_lens, "gather_lens"),
          .block_table = in.view(c.block_table, "block_table"),
          .offset = c.offset,
          .out = in.view(c.out, "out")};
}

}  // namespace strata::c_api

STRATA_C_OP(qnorm_rope_kv_insert);
STRATA_C_OP(quantize_and_insert_k);
STRATA_C_OP(dequantize_and_gather_k);
