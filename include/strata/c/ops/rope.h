// Rotary tables and the inverse rotation. V4 specification 5.4, MLA specification 6.
#ifndef STRATA_C_OPS_ROPE_H
#define STRATA_C_OPS_ROPE_H

#include "strata/c/op.h"
#include "strata/c/ops/rope_slice.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Parameters of the rotary frequencies. factor <= 1: no YaRN.
typedef struct strata_rope_config {
  size_t struct_size;             // sizeof(strata_rope_config)
  int32_t dim;                    // R, the number of rotary dimensions; dim/2 frequencies
  double theta;                   // base of the frequencies
  double factor;                  // YaRN: by how much the context is extended
  int64_t original_max_position;  // YaRN: positions before the extension
  double beta_fast;               // YaRN: rotations where the ramp begins
  double beta_slow;               // YaRN: rotations where the ramp ends
  int32_t truncate;               // flag: YaRN: the bounds of the ramp are rounded outward to whole pairs (MLA 6.1: floor and ceil)
  double mscale_gain;             // factor of cos and sin: 1 for V4; MLA: ms(factor, mscale) / ms(factor, mscale_all_dim) * attn_factor
} strata_rope_config;
// The defaults: dim 64, theta 10000.0, factor 1.0, beta_fast 32.0, beta_slow 1.0, truncate 1, mscale_gain 1.0; otherwise zeros.
static inline strata_rope_config strata_rope_config_default(void) {
  strata_rope_config config;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.dim = 64;
  config.theta = 10000.0;
  config.factor = 1.0;
  config.beta_fast = 32.0;
  config.beta_slow = 1.0;
  config.truncate = 1;
  config.mscale_gain = 1.0;
  return config;
}

// Writes config->dim / 2 frequencies, after the YaRN blend, to host memory of `count` floats. V4 5.4, MLA 6.1. Errors:
// STRATA_INVALID_ARGUMENT for another count, an odd dim, dim outside [2, 1024], theta <= 1, and with YaRN for lengths and betas that are
// not positive.
STRATA_API strata_status strata_rope_frequencies(const strata_rope_config* config, float* frequencies, int64_t count) STRATA_NOEXCEPT;
// Writes a rotary table to device memory: table f32 [max_positions, dim], contiguous. Row p is cos(p*f[0..dim/2)), then
// sin(p*f[0..dim/2)). The angle is the fp32 product; cos and sin are computed in double. The table is complete on return. Errors: as of
// strata_rope_frequencies, and STRATA_INVALID_ARGUMENT for another table and max_positions outside [1, 2^24].
STRATA_API strata_status strata_rope_table_build(strata_device device, const strata_rope_config* config,
                                                 strata_tensor_view table) STRATA_NOEXCEPT;

// inverse_rope: out = o with the last R dimensions of every head rotated back by the query's position. V4 15, step 1. Computed in fp32,
// rounded once.
// Rows of o without a token (padding) must be finite or zero; their positions must be inside the table.
// Errors of both ops here: STRATA_INVALID_ARGUMENT for shapes, dtypes, devices. On host-visible memory also for positions outside the
// table.
typedef struct strata_inverse_rope_params {
  size_t struct_size;            // sizeof(strata_inverse_rope_params)
  strata_tensor_view o;          // bf16 [T, H, D]
  strata_tensor_view positions;  // i64 [T], 0 <= p < rows of cos_sin
  strata_tensor_view cos_sin;    // f32 [max_positions, R], R <= D
  strata_tensor_view out;        // bf16 [T, H, D]; may be o itself
} strata_inverse_rope_params;
// A struct of zeros but struct_size.
static inline strata_inverse_rope_params strata_inverse_rope_params_default(void) {
  strata_inverse_rope_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs inverse_rope.
STRATA_API strata_status strata_inverse_rope(strata_device device, const strata_inverse_rope_params* params,
                                             const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_inverse_rope needs.
STRATA_API strata_status strata_inverse_rope_workspace_bytes(strata_device device, const strata_inverse_rope_params* params,
                                                             int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_inverse_rope selects.
STRATA_API strata_status strata_inverse_rope_implementation(strata_device device, const strata_inverse_rope_params* params,
                                                            const char** name) STRATA_NOEXCEPT;

// inverse_rope_quant: inverse_rope, then FP8 quantisation of its unrounded fp32 values, with one scale per token and 128 channels of the
// group's hpg*D inputs. V4 15.
typedef struct strata_inverse_rope_quant_params {
  size_t struct_size;            // sizeof(strata_inverse_rope_quant_params)
  strata_tensor_view o;          // bf16 [T, H, D], D a multiple of 128
  strata_tensor_view positions;  // i64 [T]
  strata_tensor_view cos_sin;    // f32 [max_positions, R]
  strata_tensor_view out;        // e4m3 [T, G, hpg*D], G*hpg == H, contiguous
  strata_tensor_view scale;      // f32 [T, G, hpg*D/128], powers of two, contiguous
} strata_inverse_rope_quant_params;
// A struct of zeros but struct_size.
static inline strata_inverse_rope_quant_params strata_inverse_rope_quant_params_default(void) {
  strata_inverse_rope_quant_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs inverse_rope_quant.
STRATA_API strata_status strata_inverse_rope_quant(strata_device device, const strata_inverse_rope_quant_params* params,
                                                   const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_inverse_rope_quant needs.
STRATA_API strata_status strata_inverse_rope_quant_workspace_bytes(strata_device device, const strata_inverse_rope_quant_params* params,
                                                                   int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_inverse_rope_quant selects.
STRATA_API strata_status strata_inverse_rope_quant_implementation(strata_device device, const strata_inverse_rope_quant_params* params,
                                                                  const char** name) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
