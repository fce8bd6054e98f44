#include "strata/c/ops/norm.h"

#include "c_api/op_call.h"

namespace strata::c_api {

STRATA_STRUCT(strata_key_insert, 280);
STRATA_STRUCT(strata_rms_norm_pair_params, 648);

KeyInsert to_key_insert(const strata_key_insert& c, CallReader& in) {
  return {.slot_mapping = in.view(c.slot_mapping, "insert_epilogue: slot_mapping"),
          .positions = in.view(c.positions, "insert_epilogue: positions"),
          .cos_sin = in.view(c.cos_sin, "insert_epilogue: cos_sin"),
          .cache = in.cache(c.cache, "insert_epilogue: cache")};
}

RmsNormPairParams to_params(const strata_rms_norm_pair_params& c, CallReader& in) {
  return {.q = in.view(c.q, "q"),
          .q_weight = in.view(c.q_weight, "q_weight"),
          .q_out = in.view(c.q_out, "q_out"),
          .q_scale = in.view(c.q_scale, "q_scale"),
          .q_format = to_activation_format(c.q_format, "q_format"),
          .kv = in.view(c.kv, "kv"),
          .kv_weight = in.view(c.kv_weight, "kv_weight"),
          .kv_out = in.view(c.kv_out, "kv_out"),
          .eps = c.eps,
          .insert_epilogue = in.optional(c.insert_epilogue, "insert_epilogue", to_key_insert)};
}

}  // namespace strata::c_api

STRATA_C_OP(rms_norm_pair);
