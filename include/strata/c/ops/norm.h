// RMSNorm: V4 specification 5.3, MLA specification 5.
#ifndef STRATA_C_OPS_NORM_H
#define STRATA_C_OPS_NORM_H

#include "strata/c/op.h"
#include "strata/c/ops/activation_format.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Epilogue: rotates, quantises and inserts the normalised key, as the op qnorm_rope_kv_insert does (V4 8.2). Errors: as there.
typedef struct strata_key_insert {
  size_t struct_size;               // sizeof(strata_key_insert)
  strata_tensor_view slot_mapping;  // i64 [N_ins], N_ins <= T
  strata_tensor_view positions;     // i64 [T]
  strata_tensor_view cos_sin;       // f32 [max_positions, R]
  const strata_paged_cache* cache;  // row_dim Nkv
} strata_key_insert;
// A struct of zeros but struct_size.
static inline strata_key_insert strata_key_insert_default(void) {
  strata_key_insert value;
  memset(&value, 0, sizeof value);
  value.struct_size = sizeof value;
  return value;
}

// rms_norm_pair: two independent RMSNorms in one call, of the query latent and of the key-value latent.
//   y = bf16(x * rsqrt(mean(x^2) + eps) * w), in fp32 with one rounding.
// A bf16 output may be its input. With an fp8 q_format, q_out is y quantised to e4m3 and q_scale has one scale per 128 channels (V4 5.2,
// MLA 3.1). Errors: STRATA_INVALID_ARGUMENT for shapes, dtypes, devices, strides.
typedef struct strata_rms_norm_pair_params {
  size_t struct_size;                        // sizeof(strata_rms_norm_pair_params)
  strata_tensor_view q;                      // bf16 [T, Nq], rows contiguous; absent: only kv is normalised
  strata_tensor_view q_weight;               // f32 [Nq]
  strata_tensor_view q_out;                  // bf16 [T, Nq]; fp8: e4m3 [T, Nq], not the input
  strata_tensor_view q_scale;                // fp8 only: f32 [T, ceil(Nq / 128)], rows contiguous, any row stride; absent for bf16
  strata_activation_format q_format;         // format of q_out
  strata_tensor_view kv;                     // bf16 [T, Nkv]
  strata_tensor_view kv_weight;              // f32 [Nkv]
  strata_tensor_view kv_out;                 // bf16 [T, Nkv]; absent with insert_epilogue
  float eps;                                 // added to the mean square, of both norms
  const strata_key_insert* insert_epilogue;  // for the normalised kv; null: kv_out is written
} strata_rms_norm_pair_params;
// The defaults: eps 1e-6f; otherwise zeros.
static inline strata_rms_norm_pair_params strata_rms_norm_pair_params_default(void) {
  strata_rms_norm_pair_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.eps = 1e-6f;
  return params;
}
// Runs rms_norm_pair.
STRATA_API strata_status strata_rms_norm_pair(strata_device device, const strata_rms_norm_pair_params* params,
                                              const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_rms_norm_pair needs.
STRATA_API strata_status strata_rms_norm_pair_workspace_bytes(strata_device device, const strata_rms_norm_pair_params* params,
                                                              int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_rms_norm_pair selects.
STRATA_API strata_status strata_rms_norm_pair_implementation(strata_device device, const strata_rms_norm_pair_params* params,
                                                             const char** name) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
