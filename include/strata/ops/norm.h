// RMSNorm: V4 specification 5.3, MLA specification 5.
#pragma once

#include <optional>

#include "strata/activation_format.h"
#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// Epilogue: rotates, quantises and inserts the normalised key, as the op qnorm_rope_kv_insert does (V4 8.2). Errors: as there.
struct KeyInsert {
  TensorView slot_mapping{};  // i64 [N_ins], N_ins <= T
  TensorView positions{};     // i64 [T]
  TensorView cos_sin{};       // f32 [max_positions, R]
  PagedCache cache{};         // row_dim Nkv
};

// rms_norm_pair: two independent RMSNorms in one call, of the query latent and of the key-value latent.
//   y = bf16(x * rsqrt(mean(x^2) + eps) * w), in fp32 with one rounding.
// A bf16 output may be its input. With an fp8 q_format, q_out is y quantised to e4m3 and q_scale has one scale per 128 channels (V4 5.2,
// MLA 3.1). Errors: invalid_argument for shapes, dtypes, devices, strides.
struct RmsNormPairParams {
  TensorView q{};         // bf16 [T, Nq], rows contiguous; absent: only kv is normalised
  TensorView q_weight{};  // f32 [Nq]
  TensorView q_out{};     // bf16 [T, Nq]; fp8: e4m3 [T, Nq], not the input
  TensorView q_scale{};   // fp8 only: f32 [T, ceil(Nq / 128)], rows contiguous, any row stride; absent for bf16
  ActivationFormat q_format = ActivationFormat::bf16;  // format of q_out
  TensorView kv{};                                     // bf16 [T, Nkv]
  TensorView kv_weight{};                              // f32 [Nkv]
  TensorView kv_out{};                                 // bf16 [T, Nkv]; absent with insert_epilogue
  float eps = 1e-6f;                                   // added to the mean square, of both norms
  std::optional<KeyInsert> insert_epilogue{};          // for the normalised kv; absent: kv_out is written
};

}  // namespace strata
