// Multi-head Latent Attention (MLA): preparation of queries and keys before attention. MLA specification 5, 6, 9, 11 and 14.
#ifndef STRATA_C_OPS_MLA_H
#define STRATA_C_OPS_MLA_H

#include "strata/c/op.h"
#include "strata/c/ops/rope.h"

#if defined(__cplusplus)
extern "C" {
#endif

// mla_rope_kv_insert: rotation of query and key, and the cache write. MLA 14 (the rule, not the defect described there).
//   q[t, h, P:] = bf16(rope(q[t, h, P:], positions[t])) for every head; then, if given, q[t] = bf16(q[t] * llama_4_scaling[t]) in all
//     dimensions.
//   k_pe[t] = bf16(rope(k_pe[t], positions[t])) for every row, also those without a slot.
//   q_pe_out[t] = q[t, :, P:] for t < N_out: the rotary dimensions of an absorbed query, after its 512 latent dimensions.
//   cache row slot_mapping[t] = concat(c[t], k_pe[t]) for t < N_ins with slot_mapping[t] >= 0.
// Rotations use interleaved pairs, are computed in fp32 or better, and are rounded once. Without cos_sin nothing is rotated; without
// slot_mapping no cache row is written.
// No two tokens share a slot. Errors: STRATA_INVALID_ARGUMENT for shapes, dtypes, formats, devices. On host-visible memory also for slots
// past the cache and positions outside the table; then nothing has been written.
typedef struct strata_mla_rope_kv_insert_params {
  size_t struct_size;                  // sizeof(strata_mla_rope_kv_insert_params)
  strata_tensor_view q;                // bf16 [T, H, P + R], in place; last dimension contiguous
  strata_tensor_view c;                // bf16 [T, L], after kv_a_layernorm
  strata_tensor_view k_pe;             // bf16 [T, R], R even, in place
  strata_tensor_view positions;        // i64 [T]; absent without cos_sin
  strata_tensor_view cos_sin;          // f32 [max_positions, R]; absent: no rotary embedding
  strata_tensor_view llama_4_scaling;  // f32 [T]; absent: none
  strata_tensor_view q_pe_out;         // bf16 [N_out, H, R], N_out <= T, last dimension contiguous; absent: not written
  strata_tensor_view slot_mapping;     // i64 [N_ins], N_ins <= T; absent: no cache write
  const strata_paged_cache* cache;     // bf16, fp8_tensor, fp8_ds_mla; row_dim L + R
  int32_t ue8m0;                       // flag: fp8_ds_mla: power-of-two scales (MLA 9.1)
} strata_mla_rope_kv_insert_params;
// A struct of zeros but struct_size.
static inline strata_mla_rope_kv_insert_params strata_mla_rope_kv_insert_params_default(void) {
  strata_mla_rope_kv_insert_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs mla_rope_kv_insert.
STRATA_API strata_status strata_mla_rope_kv_insert(strata_device device, const strata_mla_rope_kv_insert_params* params,
                                                   const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_mla_rope_kv_insert needs.
STRATA_API strata_status strata_mla_rope_kv_insert_workspace_bytes(strata_device device, const strata_mla_rope_kv_insert_params* params,
                                                                   int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_mla_rope_kv_insert selects.
STRATA_API strata_status strata_mla_rope_kv_insert_implementation(strata_device device, const strata_mla_rope_kv_insert_params* params,
                                                                  const char** name) STRATA_NOEXCEPT;

// indexer_key_insert, the V3.2 indexer's keys: LayerNorm, rotation, optional Hadamard, quantisation, insertion. MLA 11.1-11.4 and 11.9.
//   y = bf16((k - mean) / sqrt(variance + eps) * weight + bias), biased variance;  y = bf16(rope(y));  with hadamard y = bf16(H y /
//     sqrt(Di));
//   cache row slot_mapping[t] = y[t] for t < N_ins with slot_mapping[t] >= 0.
// k is not modified. No two tokens share a slot. Errors: as of mla_rope_kv_insert.
typedef struct strata_indexer_key_insert_params {
  size_t struct_size;               // sizeof(strata_indexer_key_insert_params)
  strata_tensor_view k;             // bf16 [T, Di], before the norm
  strata_tensor_view weight;        // f32 [Di]
  strata_tensor_view bias;          // f32 [Di]
  float eps;                        // independent of rms_norm_eps (MLA 11.1)
  strata_tensor_view positions;     // i64 [T]; absent without cos_sin
  strata_tensor_view cos_sin;       // f32 [max_positions, R], R <= Di; absent: no rotation
  strata_rope_pairing pairing;      // pairs of the rotation
  strata_rope_slice rope_slice;     // which R of Di dimensions are rotated
  int32_t hadamard;                 // flag: Di must be a power of two
  strata_tensor_view slot_mapping;  // i64 [N_ins], N_ins <= T
  const strata_paged_cache* cache;  // indexer_fp8 (Di = 128) or bf16; row_dim Di
} strata_indexer_key_insert_params;
// The defaults: eps 1e-6f, pairing STRATA_ROPE_HALF_SPLIT, rope_slice STRATA_ROPE_FIRST; otherwise zeros.
static inline strata_indexer_key_insert_params strata_indexer_key_insert_params_default(void) {
  strata_indexer_key_insert_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.eps = 1e-6f;
  params.pairing = STRATA_ROPE_HALF_SPLIT;
  params.rope_slice = STRATA_ROPE_FIRST;
  return params;
}
// Runs indexer_key_insert.
STRATA_API strata_status strata_indexer_key_insert(strata_device device, const strata_indexer_key_insert_params* params,
                                                   const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_indexer_key_insert needs.
STRATA_API strata_status strata_indexer_key_insert_workspace_bytes(strata_device device, const strata_indexer_key_insert_params* params,
                                                                   int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_indexer_key_insert selects.
STRATA_API strata_status strata_indexer_key_insert_implementation(strata_device device, const strata_indexer_key_insert_params* params,
                                                                  const char** name) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
