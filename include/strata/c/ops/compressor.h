// The KV compressor. V4 specification 9. Ratio 4 pools two overlapping windows (coff = 2), ratio 128 pools one (coff = 1).
#ifndef STRATA_C_OPS_COMPRESSOR_H
#define STRATA_C_OPS_COMPRESSOR_H

#include "strata/c/op.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Errors of both ops: STRATA_INVALID_ARGUMENT for shapes, dtypes, formats, devices. On host-visible memory also for slots past their cache,
// positions below 0 or outside the table, missing state pages, and saves in another order than described below; then nothing has been
// written.

// save_partial_states, V4 9.2 "save". For every token t with state_slots[t] >= 0:
//   state row state_slots[t] = [ kv[t] | score[t] + ape[positions[t] % ratio] ].
typedef struct strata_save_partial_states_params {
  size_t struct_size;               // sizeof(strata_save_partial_states_params)
  strata_tensor_view kv_score;      // f32 [T, 2*coff*d], rows contiguous: kv in the first half of a row, score in the second
  strata_tensor_view ape;           // f32 [ratio, coff*d]
  strata_tensor_view positions;     // i64 [T]
  strata_tensor_view state_slots;   // i64 [T]; negative: skip
  const strata_paged_cache* state;  // state_f32, row_dim 2*coff*d
} strata_save_partial_states_params;
// A struct of zeros but struct_size.
static inline strata_save_partial_states_params strata_save_partial_states_params_default(void) {
  strata_save_partial_states_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs save_partial_states.
STRATA_API strata_status strata_save_partial_states(strata_device device, const strata_save_partial_states_params* params,
                                                    const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_save_partial_states needs.
STRATA_API strata_status strata_save_partial_states_workspace_bytes(strata_device device, const strata_save_partial_states_params* params,
                                                                    int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_save_partial_states selects.
STRATA_API strata_status strata_save_partial_states_implementation(strata_device device, const strata_save_partial_states_params* params,
                                                                   const char** name) STRATA_NOEXCEPT;

// Prologue: the saves of the step, as the op save_partial_states writes them to the call's state at its state_slots.
typedef struct strata_state_save {
  size_t struct_size;           // sizeof(strata_state_save)
  strata_tensor_view kv_score;  // f32 [T, 2*coff*d], rows contiguous
  strata_tensor_view ape;       // f32 [ratio, coff*d]
} strata_state_save;
// A struct of zeros but struct_size.
static inline strata_state_save strata_state_save_default(void) {
  strata_state_save value;
  memset(&value, 0, sizeof value);
  value.struct_size = sizeof value;
  return value;
}

// compress_norm_rope_store, V4 9.1 and 9.2 "compress". For every token t with state_slots[t] >= 0, (positions[t] + 1) % ratio == 0 and
// out_slots[t] >= 0:
//   pool the last coff*ratio state rows of the token's request, apply RMSNorm, rotate by position (p / ratio) * ratio, quantise, insert at
//     out_slots[t].
// All saves of the step must precede the call. State rows whose table entry is below 0 count as 0; rows at negative positions are not read.
// With save_prologue, tokens that have a state slot are ordered by request. Within a request their distances equal those of their
// positions, and each slot is the one that block_table gives for the position. No request reads a row that the step saves for another
// request.
typedef struct strata_compress_norm_rope_store_params {
  size_t struct_size;                      // sizeof(strata_compress_norm_rope_store_params)
  const strata_state_save* save_prologue;  // null: the step's rows are already saved
  const strata_paged_cache* state;         // state_f32, row_dim 2*coff*d
  strata_tensor_view block_table;          // i32 [R, max_blocks] of the state group
  strata_tensor_view token_to_req;         // i32 [T]
  strata_tensor_view positions;            // i64 [T]
  strata_tensor_view state_slots;          // i64 [T]; negative: skip
  strata_tensor_view out_slots;            // i64 [T]; negative: skip
  int32_t ratio;                           // 4 (overlapping) or 128
  strata_tensor_view norm_weight;          // f32 [d], d = 512 or 128
  float eps;                               // added to the mean square in RMSNorm
  strata_tensor_view cos_sin;              // f32 [max_positions, R]: the last R of d dimensions are rotated
  const strata_paged_cache* cache;         // d = 512: fp8_ds_mla_v4, bf16, fp8_tensor; d = 128: indexer_fp8, indexer_mxfp4, bf16
  int32_t hadamard;                        // flag: d = 128 only: multiply by H128/sqrt(128) after the rotation, before quantising (10.5)
} strata_compress_norm_rope_store_params;
// The defaults: ratio 4, eps 1e-6f; otherwise zeros.
static inline strata_compress_norm_rope_store_params strata_compress_norm_rope_store_params_default(void) {
  strata_compress_norm_rope_store_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.ratio = 4;
  params.eps = 1e-6f;
  return params;
}
// Runs compress_norm_rope_store.
STRATA_API strata_status strata_compress_norm_rope_store(strata_device device, const strata_compress_norm_rope_store_params* params,
                                                         const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_compress_norm_rope_store needs.
STRATA_API strata_status strata_compress_norm_rope_store_workspace_bytes(strata_device device,
                                                                         const strata_compress_norm_rope_store_params* params,
                                                                         int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_compress_norm_rope_store selects.
STRATA_API strata_status strata_compress_norm_rope_store_implementation(strata_device device,
                                                                        const strata_compress_norm_rope_store_params* params,
                                                                        const char** name) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
