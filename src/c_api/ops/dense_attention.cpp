#include "strata/c/ops/dense_attention.h"

#include "c_api/op_call.h"

namespace strata::c_api {

STRATA_STRUCT(strata_dense_attn_decode_params, 672);
STRATA_STRUCT(strata_dense_attn_prefill_params, 736);

DenseAttnDecodeParams to_params(const strata_dense_attn_decode_params& c, CallReader& in) {
  return {.q = in.view(c.q, "q"),
          .cache = in.cache(c.cache, "cache"),
          .num_kv_heads = c.num_kv_heads,
          .block_table = in.view(c.block_table, "block_table"),
          .query_start_loc = in.view(c.query_start_loc, "query_start_loc"),
          .seq_lens = in.view(c.seq_lens, "seq_lens"),
          .max_query_len = c.max_query_len,
          .max_seq_len = c.max_seq_len,
          .causal = to_bool(c.causal, "causal"),
          .softmax_scale = c.softmax_scale,
          .batch_invariant = to_bool(c.batch_invariant, "batch_invariant"),
          .schedule = in.view(c.schedule, "schedule"),
          .out = in.view(c.out, "out"),
          .lse = in.view(c.lse, "lse")};
}

DenseAttnPrefillParams to_params(const strata_dense_attn_prefill_params& c, CallReader& in) {
  return {.q = in.view(c.q, "q"),
          .k_nope = in.view(c.k_nope, "k_nope"),
          .k_pe = in.view(c.k_pe, "k_pe"),
          .v = in.view(c.v, "v"),
          .query_start_loc = in.view(c.query_start_loc, "query_start_loc"),
          .key_start_loc = in.view(c.key_start_loc, "key_start_loc"),
          .max_query_len = c.max_query_len,
          .max_key_len = c.max_key_len,
          .causal = to_bool(c.causal, "causal"),
          .softmax_scale = c.softmax_scale,
          .out = in.view(c.out, "out"),
          .lse = in.view(c.lse, "lse")};
}

}  // namespace strata::c_api

STRATA_C_OP(dense_attn_decode);
STRATA_C_OP(dense_attn_prefill);
