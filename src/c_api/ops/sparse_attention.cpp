#include "strata/c/ops/sparse_attention.h"

#include "c_api/op_call.h"

namespace strata::c_api {

STRATA_STRUCT(strata_query_norm_rope, 192);
STRATA_STRUCT(strata_inverse_rope_epilogue, 184);
STRATA_STRUCT(strata_sparse_attn_decode_params, 928);
STRATA_STRUCT(strata_sparse_attn_prefill_params, 720);
STRATA_STRUCT(strata_merge_attn_states_params, 456);

QueryNormRope to_query_norm_rope(const strata_query_norm_rope& c, CallReader& in) {
  return {.positions = in.view(c.positions, "query_prologue: positions"),
          .cos_sin = in.view(c.cos_sin, "query_prologue: cos_sin"),
          .eps = c.eps};
}

InverseRope to_inverse_rope(const strata_inverse_rope_epilogue& c, CallReader& in) {
  return {.positions = in.view(c.positions, "out_epilogue: positions"), .cos_sin = in.view(c.cos_sin, "out_epilogue: cos_sin")};
}

SparseAttnDecodeParams to_params(const strata_sparse_attn_decode_params& c, CallReader& in) {
  return {.q = in.view(c.q, "q"),
          .cache = in.cache(c.cache, "cache"),
          .indices = in.view(c.indices, "indices"),
          .topk_length = in.view(c.topk_length, "topk_length"),
          .extra_cache = in.cache(c.extra_cache, "extra_cache"),
          .extra_indices = in.view(c.extra_indices, "extra_indices"),
          .extra_topk_length = in.view(c.extra_topk_length, "extra_topk_length"),
          .attn_sink = in.view(c.attn_sink, "attn_sink"),
          .softmax_scale = c.softmax_scale,
          .batch_invariant = to_bool(c.batch_invariant, "batch_invariant"),
          .schedule = in.view(c.schedule, "schedule"),
          .query_prologue = in.optional(c.query_prologue, "query_prologue", to_query_norm_rope),
          .out_epilogue = in.optional(c.out_epilogue, "out_epilogue", to_inverse_rope),
          .out = in.view(c.out, "out"),
          .lse = in.view(c.lse, "lse"),
          .max_logits = in.view(c.max_logits, "max_logits")};
}

SparseAttnPrefillParams to_params(const strata_sparse_attn_prefill_params& c, CallReader& in) {
  return {.q = in.view(c.q, "q"),
          .kv = in.view(c.kv, "kv"),
          .indices = in.view(c.indices, "indices"),
          .topk_length = in.view(c.topk_length, "topk_length"),
          .attn_sink = in.view(c.attn_sink, "attn_sink"),
          .softmax_scale = c.softmax_scale,
          .batch_invariant = to_bool(c.batch_invariant, "batch_invariant"),
          .out = in.view(c.out, "out"),
          .lse = in.view(c.lse, "lse"),
          .max_logits = in.view(c.max_logits, "max_logits")};
}

MergeAttnStatesParams to_params(const strata_merge_attn_states_params& c, CallReader& in) {
  return {.o = in.view(c.o, "o"),
          .lse = in.view(c.lse, "lse"),
          .attn_sink = in.view(c.attn_sink, "attn_sink"),
          .empty_lse = c.empty_lse,
          .out = in.view(c.out, "out"),
          .lse_out = in.view(c.lse_out, "lse_out")};
}

}  // namespace strata::c_api

STRATA_C_OP(sparse_attn_decode);
STRATA_C_OP(sparse_attn_prefill);
STRATA_C_OP(merge_attn_states);
