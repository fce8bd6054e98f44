// RMSNorm: V4 specification 5.3, MLA specification 5.
#pragma once

#include "strata/activation_format.h"
#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// Two independent norms in one call, as every layer needs them: the query latent and the key-value latent.
// y = bf16(x * rsqrt(mean(x^2) + eps) * w), fp32 inside, one rounding; out may be the input, but not as codes. With an fp8 q_format q_out
// holds codes of y and q_scale a scale per 128 channels (V4 5.2, MLA 3.1). Errors: invalid_argument for shapes, dtypes, devices, strides.
struct RmsNormPairParams {
  TensorView q{};         // bf16 [T, Nq], rows contiguous; absent: only kv is normalised
  TensorView q_weight{};  // f32 [Nq]
  TensorView q_out{};     // bf16 [T, Nq]; fp8: e4m3 [T, Nq], not the input
  TensorView q_scale{};   // fp8 only: f32 [T, ceil(Nq / 128)], rows contiguous, any row stride; absent for bf16
  ActivationFormat q_format = ActivationFormat::bf16;
  TensorView kv{};         // bf16 [T, Nkv]
  TensorView kv_weight{};  // f32 [Nkv]
  TensorView kv_out{};     // bf16 [T, Nkv]
  float eps = 1e-6f;
  // With slots the key is inserted, exactly as by qnorm_rope_kv_insert behind this op (V4 8.2) from what is rounded to bf16; kv_out is then
  // written or not. Errors: as there.
  TensorView slot_mapping{};  // i64 [N_ins], N_ins <= T; absent: nothing is inserted, as are the following
  TensorView positions{};     // i64 [T]
  TensorView cos_sin{};       // f32 [max_positions, R]
  PagedCache cache{};         // row_dim Nkv
};

}  // namespace strata
