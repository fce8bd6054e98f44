// Sparse attention: softmax over selected rows; keys and values are the same vectors. V4 specification 14, MLA specification 8 and 13.
#ifndef STRATA_C_OPS_SPARSE_ATTENTION_H
#define STRATA_C_OPS_SPARSE_ATTENTION_H

#include "strata/c/op.h"

#if defined(__cplusplus)
extern "C" {
#endif

// One query and head attend to a set S of rows: l_s = scale * <q, k_s>; lse = ln sum exp(l_s), without the sink;
//   out = sum exp(l_s) v_s / (sum exp(l_s) + exp(sink)), v_s = the first Dv dimensions of row s.
// Empty S: out = 0 for every sink, lse = +inf, max_logits = -inf. Rows outside S are never read.

// Prologue: q := qnorm_rope(q), as the op qnorm_rope_kv_insert computes it. V4 8.1.
typedef struct strata_query_norm_rope {
  size_t struct_size;            // sizeof(strata_query_norm_rope)
  strata_tensor_view positions;  // i64 [T], 0 <= p < rows of cos_sin
  strata_tensor_view cos_sin;    // f32 [max_positions, R], R <= D: the last R dimensions are rotated
  float eps;                     // added to the mean square in RMSNorm
} strata_query_norm_rope;
// The defaults: eps 1e-6f; otherwise zeros.
static inline strata_query_norm_rope strata_query_norm_rope_default(void) {
  strata_query_norm_rope value;
  memset(&value, 0, sizeof value);
  value.struct_size = sizeof value;
  value.eps = 1e-6f;
  return value;
}

// Epilogue: out := inverse_rope(out), as the op inverse_rope computes it. V4 15, step 1.
typedef struct strata_inverse_rope_epilogue {
  size_t struct_size;            // sizeof(strata_inverse_rope_epilogue)
  strata_tensor_view positions;  // i64 [T], 0 <= p < rows of cos_sin
  strata_tensor_view cos_sin;    // f32 [max_positions, R], R <= Dv: the last R dimensions are rotated
} strata_inverse_rope_epilogue;
// A struct of zeros but struct_size.
static inline strata_inverse_rope_epilogue strata_inverse_rope_epilogue_default(void) {
  strata_inverse_rope_epilogue value;
  memset(&value, 0, sizeof value);
  value.struct_size = sizeof value;
  return value;
}

// sparse_attn_decode: attention over paged caches, with one or several query tokens per batch entry. V4 14.2. The V4 layer calls it with B
// = tokens and S = 1, for decode and for prefill directly from the caches.
// Entry i is in S iff i < topk_length[b] (absent: all) and indices[b, s, i] != -1. Entries from topk_length[b] on are ignored. Other
// negative or out-of-range entries before it are caller errors (STRATA_INVALID_ARGUMENT on host-visible memory).
// Errors also: STRATA_INVALID_ARGUMENT for shapes, dtypes, formats, devices, a scale that is not positive; on host-visible memory also NaN
// sinks.
//
// A schedule divides the call's rows among the thread blocks of an implementation. It helps where lengths differ or are far below the width
// of indices. A batch builder makes it, because it has the lengths on the host. Its bytes are private to the implementation and are not
// checked: a schedule of another call is the caller's error. An implementation that takes no such schedule ignores it. A schedule changes a
// result only by rounding.
// The schedule may be read before the preceding kernel has finished, so that kernel must not write it.
typedef struct strata_sparse_attn_decode_params {
  size_t struct_size;                                // sizeof(strata_sparse_attn_decode_params)
  strata_tensor_view q;                              // bf16 [B, S, H, D], D = 512 or 576; H = 1..128
  const strata_paged_cache* cache;                   // window or latent cache: fp8_ds_mla_v4, fp8_ds_mla, bf16, fp8_tensor; row_dim D
  strata_tensor_view indices;                        // i32 [B, S, topk]: slots; -1: no row
  strata_tensor_view topk_length;                    // i32 [B]; absent: topk
  const strata_paged_cache* extra_cache;             // second set of rows, with its own page size and stride; null: none
  strata_tensor_view extra_indices;                  // i32 [B, S, topk2]: slots of extra_cache
  strata_tensor_view extra_topk_length;              // i32 [B]; absent: topk2
  strata_tensor_view attn_sink;                      // f32 [H], raw logits; -inf: no effect; absent: none
  float softmax_scale;                               // factor of <q, k>; positive
  int32_t batch_invariant;                           // flag: fixed KV splits: a token's result does not depend on the rest of the batch
  strata_tensor_view schedule;                       // u8 [bytes], contiguous: the batch's c128_schedule; absent: none
  const strata_query_norm_rope* query_prologue;      // for the B*S tokens; q itself is not written. Null: q is normalised and rotated
  const strata_inverse_rope_epilogue* out_epilogue;  // for the B*S tokens. Null: out keeps its rotation
  strata_tensor_view out;                            // bf16 [B, S, H, Dv], Dv <= D
  strata_tensor_view lse;                            // f32 [B, H, S], natural logarithm; absent: not written
  strata_tensor_view max_logits;                     // f32 [B, H, S]; absent: not written
} strata_sparse_attn_decode_params;
// A struct of zeros but struct_size.
static inline strata_sparse_attn_decode_params strata_sparse_attn_decode_params_default(void) {
  strata_sparse_attn_decode_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs sparse_attn_decode.
STRATA_API strata_status strata_sparse_attn_decode(strata_device device, const strata_sparse_attn_decode_params* params,
                                                   const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_sparse_attn_decode needs.
STRATA_API strata_status strata_sparse_attn_decode_workspace_bytes(strata_device device, const strata_sparse_attn_decode_params* params,
                                                                   int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_sparse_attn_decode selects.
STRATA_API strata_status strata_sparse_attn_decode_implementation(strata_device device, const strata_sparse_attn_decode_params* params,
                                                                  const char** name) STRATA_NOEXCEPT;

// sparse_attn_prefill: attention over bf16 rows that were gathered before. V4 14.3. Entry i is in S iff i < topk_length[t] and 0 <=
// indices[t, i] < s_kv. Other entries are skipped without an error.
typedef struct strata_sparse_attn_prefill_params {
  size_t struct_size;              // sizeof(strata_sparse_attn_prefill_params)
  strata_tensor_view q;            // bf16 [T, H, D]
  strata_tensor_view kv;           // bf16 [s_kv, D], rows contiguous
  strata_tensor_view indices;      // i32 [T, topk]: rows of kv
  strata_tensor_view topk_length;  // i32 [T]; absent: topk
  strata_tensor_view attn_sink;    // f32 [H]; absent: none
  float softmax_scale;             // factor of <q, k>; positive
  int32_t batch_invariant;         // flag: as in strata_sparse_attn_decode_params
  strata_tensor_view out;          // bf16 [T, H, Dv]
  strata_tensor_view lse;          // f32 [T, H], natural logarithm; absent: not written
  strata_tensor_view max_logits;   // f32 [T, H]; absent: not written
} strata_sparse_attn_prefill_params;
// A struct of zeros but struct_size.
static inline strata_sparse_attn_prefill_params strata_sparse_attn_prefill_params_default(void) {
  strata_sparse_attn_prefill_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs sparse_attn_prefill.
STRATA_API strata_status strata_sparse_attn_prefill(strata_device device, const strata_sparse_attn_prefill_params* params,
                                                    const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_sparse_attn_prefill needs.
STRATA_API strata_status strata_sparse_attn_prefill_workspace_bytes(strata_device device, const strata_sparse_attn_prefill_params* params,
                                                                    int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_sparse_attn_prefill selects.
STRATA_API strata_status strata_sparse_attn_prefill_implementation(strata_device device, const strata_sparse_attn_prefill_params* params,
                                                                   const char** name) STRATA_NOEXCEPT;

// merge_attn_states: one softmax from n partial results over disjoint rows. V4 14.4, MLA 7.2.
//   m = max lse_k;  out = sum_k exp(lse_k - m) o_k / (sum_k exp(lse_k - m) + exp(sink - m));  lse = m + ln sum exp(lse_k - m)
// Each o_k is normalised by its own sum, without the sink. lse_k = +inf or -inf marks an empty partial result. If all are empty, out = 0
// and lse = empty_lse.
// out and lse_out may alias one of the n partial results in o and lse, so results can be accumulated in place.
typedef struct strata_merge_attn_states_params {
  size_t struct_size;            // sizeof(strata_merge_attn_states_params)
  strata_tensor_view o;          // f32 or bf16 [n, T, H, Dv]
  strata_tensor_view lse;        // f32 [n, T, H], natural logarithm
  strata_tensor_view attn_sink;  // f32 [H]; absent: none
  // lse_out of an empty row: +inf (V4 14.1) or -inf (MLA 7.2). It has no default and must be set: 0 is refused.
  float empty_lse;
  strata_tensor_view out;      // bf16 or f32 [T, H, Dv]
  strata_tensor_view lse_out;  // f32 [T, H]; absent: not written
} strata_merge_attn_states_params;
// A struct of zeros but struct_size.
static inline strata_merge_attn_states_params strata_merge_attn_states_params_default(void) {
  strata_merge_attn_states_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs merge_attn_states.
STRATA_API strata_status strata_merge_attn_states(strata_device device, const strata_merge_attn_states_params* params,
                                                  const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_merge_attn_states needs.
STRATA_API strata_status strata_merge_attn_states_workspace_bytes(strata_device device, const strata_merge_attn_states_params* params,
                                                                  int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_merge_attn_states selects.
STRATA_API strata_status strata_merge_attn_states_implementation(strata_device device, const strata_merge_attn_states_params* params,
                                                                 const char** name) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
