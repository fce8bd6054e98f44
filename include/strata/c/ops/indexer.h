// The lightning indexer: query side, logits, top-k selection. V4 specification 10, MLA specification 11.
// Errors of all ops: STRATA_INVALID_ARGUMENT for shapes, dtypes, formats, devices and scales that are not positive. On host-visible memory
// also for lengths outside their bounds, positions outside the table, and candidates whose page is missing.
#ifndef STRATA_C_OPS_INDEXER_H
#define STRATA_C_OPS_INDEXER_H

#include "strata/c/op.h"
#include "strata/c/ops/rope.h"

#if defined(__cplusplus)
extern "C" {
#endif

// indexer_query: rotate, optionally apply Hadamard, quantise, and fold the scales into the head weights. V4 10.1
// (fused_indexer_q_rope_quant), MLA 11.2-11.5.
// q_out e4m3: weights_out = ((w * q_scale) * softmax_scale) * head_scale. q_out u8 (MXFP4) or bf16: weights_out = (w * softmax_scale) *
// head_scale.
typedef struct strata_indexer_query_params {
  size_t struct_size;              // sizeof(strata_indexer_query_params)
  strata_tensor_view q;            // bf16 [T, Hi, Di]
  strata_tensor_view weights;      // bf16 or f32 [T, Hi]
  strata_tensor_view positions;    // i64 [T]
  strata_tensor_view cos_sin;      // f32 [max_positions, R]; absent: no rotation, positions are ignored
  strata_rope_pairing pairing;     // pairs of the rotation
  strata_rope_slice rope_slice;    // which R of Di dimensions are rotated
  int32_t hadamard;                // flag: Di must be a power of two
  float softmax_scale;             // Di^-0.5
  float head_scale;                // Hi^-0.5
  float amax_floor;                // e4m3 q_out: least amax from which a scale is computed
  strata_tensor_view q_out;        // e4m3 [T, Hi, Di], u8 [T, Hi, Di/2] (MXFP4), or bf16 [T, Hi, Di] (unquantised); contiguous
  strata_tensor_view q_scale_out;  // MXFP4 only: e8m0 [T, Hi, Di/32], contiguous
  strata_tensor_view weights_out;  // f32 [T, Hi], contiguous
} strata_indexer_query_params;
// The defaults: amax_floor 1e-4f; otherwise zeros.
static inline strata_indexer_query_params strata_indexer_query_params_default(void) {
  strata_indexer_query_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.amax_floor = 1e-4f;
  return params;
}
// Runs indexer_query.
STRATA_API strata_status strata_indexer_query(strata_device device, const strata_indexer_query_params* params,
                                              const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_indexer_query needs.
STRATA_API strata_status strata_indexer_query_workspace_bytes(strata_device device, const strata_indexer_query_params* params,
                                                              int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_indexer_query selects.
STRATA_API strata_status strata_indexer_query_implementation(strata_device device, const strata_indexer_query_params* params,
                                                             const char** name) STRATA_NOEXCEPT;

// indexer_logits, in fp32: V4 10.3, MLA 11.6. For j < lengths[t]:
//   logits[t, j] = k_scale[j] * sum_h weights[t, h] * relu(sum_d q[t, h, d] * k[j, d]).
// Candidate j of token t is row block_table[req][j / page_size] * page_size + j % page_size. Columns j >= lengths[t] are not written.
typedef struct strata_indexer_logits_params {
  size_t struct_size;               // sizeof(strata_indexer_logits_params)
  strata_tensor_view q;             // e4m3 [T, Hi, Di], u8 [T, Hi, Di/2], bf16 [T, Hi, Di]; contiguous; matches cache.format
  strata_tensor_view q_scale;       // MXFP4 only: e8m0 [T, Hi, Di/32]
  strata_tensor_view weights;       // f32 [T, Hi], contiguous
  const strata_paged_cache* cache;  // indexer_fp8 with e4m3 q, indexer_mxfp4 with u8 q, bf16 with bf16 q
  strata_tensor_view block_table;   // i32 [R, max_blocks]
  strata_tensor_view token_to_req;  // i32 [T]
  strata_tensor_view lengths;       // i32 [T]: candidates of each token; 0 for padding
  strata_tensor_view logits;        // f32 [T, C], C >= every length
} strata_indexer_logits_params;
// A struct of zeros but struct_size.
static inline strata_indexer_logits_params strata_indexer_logits_params_default(void) {
  strata_indexer_logits_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs indexer_logits.
STRATA_API strata_status strata_indexer_logits(strata_device device, const strata_indexer_logits_params* params,
                                               const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_indexer_logits needs.
STRATA_API strata_status strata_indexer_logits_workspace_bytes(strata_device device, const strata_indexer_logits_params* params,
                                                               int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_indexer_logits selects.
STRATA_API strata_status strata_indexer_logits_implementation(strata_device device, const strata_indexer_logits_params* params,
                                                              const char** name) STRATA_NOEXCEPT;

// topk_select: the k largest logits of each row as ascending entry numbers, left-packed; -1 fills the rest. V4 10.4, MLA 11.8.
// lengths[t] <= k selects 0..lengths[t]-1. Of equal logits the smaller entry number wins. NaN counts as -inf. Columns from lengths[t] on
// never change the result; a GPU may read up to three of them.
typedef struct strata_topk_select_params {
  size_t struct_size;               // sizeof(strata_topk_select_params)
  strata_tensor_view logits;        // f32 [T, C]
  strata_tensor_view lengths;       // i32 [T], 0 <= lengths[t] <= C
  strata_tensor_view topk_indices;  // i32 [T, k]; every column of every row is written
} strata_topk_select_params;
// A struct of zeros but struct_size.
static inline strata_topk_select_params strata_topk_select_params_default(void) {
  strata_topk_select_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs topk_select.
STRATA_API strata_status strata_topk_select(strata_device device, const strata_topk_select_params* params,
                                            const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_topk_select needs.
STRATA_API strata_status strata_topk_select_workspace_bytes(strata_device device, const strata_topk_select_params* params,
                                                            int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_topk_select selects.
STRATA_API strata_status strata_topk_select_implementation(strata_device device, const strata_topk_select_params* params,
                                                           const char** name) STRATA_NOEXCEPT;

// Prologue: computes the query as the op indexer_query does, in the form that the cache's format needs. Fields as in
// strata_indexer_query_params.
typedef struct strata_indexer_query_prologue {
  size_t struct_size;            // sizeof(strata_indexer_query_prologue)
  strata_tensor_view q;          // bf16 [T, Hi, Di]
  strata_tensor_view weights;    // bf16 or f32 [T, Hi]
  strata_tensor_view positions;  // i64 [T]
  strata_tensor_view cos_sin;    // f32 [max_positions, R]; absent: no rotation, positions are ignored
  strata_rope_pairing pairing;   // pairs of the rotation
  strata_rope_slice rope_slice;  // which R of Di dimensions are rotated
  int32_t hadamard;              // flag: Di must be a power of two
  float softmax_scale;           // Di^-0.5
  float head_scale;              // Hi^-0.5
  float amax_floor;              // e4m3 queries: least amax from which a scale is computed
} strata_indexer_query_prologue;
// The defaults: amax_floor 1e-4f; otherwise zeros.
static inline strata_indexer_query_prologue strata_indexer_query_prologue_default(void) {
  strata_indexer_query_prologue value;
  memset(&value, 0, sizeof value);
  value.struct_size = sizeof value;
  value.amax_floor = 1e-4f;
  return value;
}

// Epilogue: converts the selected entries of the first S tokens to slots of another cache, as the op compute_global_topk does.
typedef struct strata_topk_slots {
  size_t struct_size;              // sizeof(strata_topk_slots)
  strata_tensor_view block_table;  // i32 [R, max_blocks]
  int32_t page_size;               // rows per page of that cache
  strata_tensor_view slots;        // i32 [S, k], S <= T
  strata_tensor_view lens;         // i32 [S]
} strata_topk_slots;
// A struct of zeros but struct_size.
static inline strata_topk_slots strata_topk_slots_default(void) {
  strata_topk_slots value;
  memset(&value, 0, sizeof value);
  value.struct_size = sizeof value;
  return value;
}

// indexer_topk: logits and top-k selection in one op. The result is that of indexer_logits and topk_select, with bounded workspace (no [T,
// C] matrix).
// max_length <= k (short context, not in captured graphs) selects 0..lengths[t]-1. Then only lengths is read, and q, cache and so on may be
// absent; slots_epilogue still needs token_to_req.
typedef struct strata_indexer_topk_params {
  size_t struct_size;  // sizeof(strata_indexer_topk_params)
  // The first six are as in strata_indexer_logits_params.
  strata_tensor_view q;                                 // e4m3 [T, Hi, Di], u8 [T, Hi, Di/2], bf16 [T, Hi, Di]; absent with query_prologue
  strata_tensor_view q_scale;                           // MXFP4 only: e8m0 [T, Hi, Di/32]; absent with query_prologue
  strata_tensor_view weights;                           // f32 [T, Hi], contiguous; absent with query_prologue
  const strata_paged_cache* cache;                      // indexer_fp8, indexer_mxfp4 or bf16, as q
  strata_tensor_view block_table;                       // i32 [R, max_blocks]
  strata_tensor_view token_to_req;                      // i32 [T]
  strata_tensor_view lengths;                           // i32 [T]: candidates of each token
  const strata_indexer_query_prologue* query_prologue;  // null: q is quantised already
  int64_t max_length;                                   // host-side upper bound of lengths
  strata_tensor_view topk_indices;                      // i32 [T, k]; every column of every row is written
  const strata_topk_slots* slots_epilogue;              // null: no slots are written
} strata_indexer_topk_params;
// A struct of zeros but struct_size.
static inline strata_indexer_topk_params strata_indexer_topk_params_default(void) {
  strata_indexer_topk_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs indexer_topk.
STRATA_API strata_status strata_indexer_topk(strata_device device, const strata_indexer_topk_params* params,
                                             const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_indexer_topk needs.
STRATA_API strata_status strata_indexer_topk_workspace_bytes(strata_device device, const strata_indexer_topk_params* params,
                                                             int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_indexer_topk selects.
STRATA_API strata_status strata_indexer_topk_implementation(strata_device device, const strata_indexer_topk_params* params,
                                                            const char** name) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
