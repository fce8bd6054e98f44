// RMSNorm: V4 specification 5.3, MLA specification 5.
#pragma once

#include "strata/tensor.h"

namespace strata {

// Two independent norms in one call, as every layer needs them: the query latent and the key-value latent.
// y = bf16(x * rsqrt(mean(x^2) + eps) * w), fp32 inside, one rounding. out may be the input.
struct RmsNormPairParams {
  TensorView q{};          // bf16 [T, Nq], rows contiguous; absent: only kv is normalised
  TensorView q_weight{};   // f32 [Nq]
  TensorView q_out{};      // bf16 [T, Nq]
  TensorView kv{};         // bf16 [T, Nkv]
  TensorView kv_weight{};  // f32 [Nkv]
  TensorView kv_out{};     // bf16 [T, Nkv]
  float eps = 1e-6f;
};

}  // namespace strata
