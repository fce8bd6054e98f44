// Inserting keys into paged caches, and reading them back as bf16 rows. V4 specification 5.5, 6, 8 and 13.
#ifndef STRATA_C_OPS_KV_INSERT_H
#define STRATA_C_OPS_KV_INSERT_H

#include "strata/c/op.h"

#if defined(__cplusplus)
extern "C" {
#endif

// qnorm_rope_kv_insert: per-head RMSNorm and rotation of queries; rotation, quantisation and cache insertion of keys. One horizontally
// fused op, V4 8.1 and 8.2.
//   q_out[n, h] = rope(q[n, h] * rsqrt(mean(q[n, h]^2) + eps), positions[n]) for every n; heads H..Hp-1 of q_out are +0.
//   cache row slot_mapping[n] = quantised rope(kv[n], positions[n]) for n < N_ins with slot_mapping[n] >= 0; other rows write nothing.
// No two tokens share a slot. kv is not modified. q_out may be q when Hp == H.
// Errors: STRATA_INVALID_ARGUMENT for shapes, dtypes, and formats other than fp8_ds_mla_v4, bf16, fp8_tensor. On host-visible memory also
// for slots from num_pages * page_size on and positions outside the table; then nothing has been written.
typedef struct strata_qnorm_rope_kv_insert_params {
  size_t struct_size;               // sizeof(strata_qnorm_rope_kv_insert_params)
  strata_tensor_view q;             // bf16 [N, H, D]
  strata_tensor_view kv;            // bf16 [N, D], already normalised by kv_norm
  strata_tensor_view positions;     // i64 [N]
  strata_tensor_view cos_sin;       // f32 [max_positions, R]: the last R of D dimensions are rotated
  strata_tensor_view slot_mapping;  // i64 [N_ins], N_ins <= N; absent: no cache (dummy run), only q_out is computed
  const strata_paged_cache* cache;  // row_dim D
  strata_tensor_view q_out;         // bf16 [N, Hp, D], Hp >= H; with an fp8_tensor cache also e4m3 [N, H, D]
  float eps;                        // added to the mean square in RMSNorm
  float q_scale_inv;                // e4m3 q_out only: q_out = e4m3(clamp(q * q_scale_inv))
} strata_qnorm_rope_kv_insert_params;
// The defaults: eps 1e-6f, q_scale_inv 1.0f; otherwise zeros.
static inline strata_qnorm_rope_kv_insert_params strata_qnorm_rope_kv_insert_params_default(void) {
  strata_qnorm_rope_kv_insert_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.eps = 1e-6f;
  params.q_scale_inv = 1.0f;
  return params;
}
// Runs qnorm_rope_kv_insert.
STRATA_API strata_status strata_qnorm_rope_kv_insert(strata_device device, const strata_qnorm_rope_kv_insert_params* params,
                                                     const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_qnorm_rope_kv_insert needs.
STRATA_API strata_status strata_qnorm_rope_kv_insert_workspace_bytes(strata_device device, const strata_qnorm_rope_kv_insert_params* params,
                                                                     int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_qnorm_rope_kv_insert selects.
STRATA_API strata_status strata_qnorm_rope_kv_insert_implementation(strata_device device, const strata_qnorm_rope_kv_insert_params* params,
                                                                    const char** name) STRATA_NOEXCEPT;

// quantize_and_insert_k: quantises rows that are already rotated and bf16, and inserts them. V4 5.5 and 6.1 (quantize_and_insert_k_cache).
// fp8_tensor values are e4m3(x * (1 / scale)) (V4 6.5), in rows of 576 values e4m3(x / scale) (MLA 9). Errors: as of qnorm_rope_kv_insert.
typedef struct strata_quantize_and_insert_k_params {
  size_t struct_size;               // sizeof(strata_quantize_and_insert_k_params)
  strata_tensor_view k;             // bf16 [N, D]
  strata_tensor_view slot_mapping;  // i64 [N_ins], N_ins <= N; negative: skip
  // fp8_ds_mla_v4, bf16, fp8_tensor (D = row_dim), indexer_fp8, indexer_mxfp4 (D = 128), fp8_ds_mla (D = 576)
  const strata_paged_cache* cache;
  int32_t ue8m0;  // flag: fp8_ds_mla only: power-of-two scales instead of amax/448 (MLA 9.1)
} strata_quantize_and_insert_k_params;
// A struct of zeros but struct_size.
static inline strata_quantize_and_insert_k_params strata_quantize_and_insert_k_params_default(void) {
  strata_quantize_and_insert_k_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs quantize_and_insert_k.
STRATA_API strata_status strata_quantize_and_insert_k(strata_device device, const strata_quantize_and_insert_k_params* params,
                                                      const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_quantize_and_insert_k needs.
STRATA_API strata_status strata_quantize_and_insert_k_workspace_bytes(strata_device device,
                                                                      const strata_quantize_and_insert_k_params* params,
                                                                      int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_quantize_and_insert_k selects.
STRATA_API strata_status strata_quantize_and_insert_k_implementation(strata_device device,
                                                                     const strata_quantize_and_insert_k_params* params,
                                                                     const char** name) STRATA_NOEXCEPT;

// dequantize_and_gather_k: rows of the paged cache as bf16, for the workspace of gathered prefill. V4 13 (dequantize_and_gather_k_cache).
// For request c and i in [0, g), g = gather_lens ? gather_lens[c] : seq_lens[c]: pos = seq_lens[c] - g + i,
//   out[c, offset + i] = row block_table[c][pos / page_size] * page_size + pos % page_size.
// Other rows of out are unchanged. With power-of-two scales dequantisation to bf16 is exact.
// Errors: STRATA_INVALID_ARGUMENT for shapes, dtypes, devices. On host-visible memory also for rows outside out, and pages, among those
// read, that are missing.
typedef struct strata_dequantize_and_gather_k_params {
  size_t struct_size;               // sizeof(strata_dequantize_and_gather_k_params)
  const strata_paged_cache* cache;  // any format except state_f32
  strata_tensor_view seq_lens;      // i32 [R], in rows of this cache
  strata_tensor_view gather_lens;   // i32 [R]; absent: seq_lens
  strata_tensor_view block_table;   // i32 [R, max_blocks]
  int64_t offset;                   // first written row of each request in out
  strata_tensor_view out;           // bf16 [R, M, row_dim]
} strata_dequantize_and_gather_k_params;
// A struct of zeros but struct_size.
static inline strata_dequantize_and_gather_k_params strata_dequantize_and_gather_k_params_default(void) {
  strata_dequantize_and_gather_k_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs dequantize_and_gather_k.
STRATA_API strata_status strata_dequantize_and_gather_k(strata_device device, const strata_dequantize_and_gather_k_params* params,
                                                        const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_dequantize_and_gather_k needs.
STRATA_API strata_status strata_dequantize_and_gather_k_workspace_bytes(strata_device device,
                                                                        const strata_dequantize_and_gather_k_params* params,
                                                                        int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_dequantize_and_gather_k selects.
STRATA_API strata_status strata_dequantize_and_gather_k_implementation(strata_device device,
                                                                       const strata_dequantize_and_gather_k_params* params,
                                                                       const char** name) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
