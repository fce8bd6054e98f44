// Rotary tables and the inverse rotation. V4 specification 5.4, MLA specification 6.
#pragma once

#include <cstdint>

#include "strata/ops/rope_slice.h"
#include "strata/tensor.h"

namespace strata {

// Parameters of the rotary frequencies. factor <= 1: no YaRN.
struct RopeConfig {
  int32_t dim = 64;                   // R, the number of rotary dimensions; dim/2 frequencies
  double theta = 10000.0;             // base of the frequencies
  double factor = 1.0;                // YaRN: by how much the context is extended
  int64_t original_max_position = 0;  // YaRN: positions before the extension
  double beta_fast = 32.0;            // YaRN: rotations where the ramp begins
  double beta_slow = 1.0;             // YaRN: rotations where the ramp ends
  bool truncate = true;               // YaRN: the bounds of the ramp are rounded outward to whole pairs (MLA 6.1: floor and ceil)
  double mscale_gain = 1.0;           // factor of cos and sin: 1 for V4; MLA: ms(factor, mscale) / ms(factor, mscale_all_dim) * attn_factor
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// frequencies[0 .. dim/2): fp32, after the YaRN blend. V4 5.4, MLA 6.1. Throws invalid_argument for an odd dim, dim outside [2, 1024],
// theta <= 1, and with YaRN for lengths and betas that are not positive.
void rope_frequencies(const RopeConfig& config, float* frequencies);

// f32 [max_positions, dim]: row p is cos(p*f[0..dim/2)), then sin(p*f[0..dim/2)). The angle is the fp32 product; cos and sin are computed
// in double. Throws as rope_frequencies does, and invalid_argument for max_positions outside [1, 2^24].
[[nodiscard]] Tensor build_rope_table(const RopeConfig& config, int64_t max_positions, const std::shared_ptr<Device>& device);

// inverse_rope: out = o with the last R dimensions of every head rotated back by the query's position. V4 15, step 1. Computed in fp32,
// rounded once.
// Rows of o without a token (padding) must be finite or zero; their positions must be inside the table.
// Errors of both ops here: invalid_argument for shapes, dtypes, devices. On host-visible memory also for positions outside the table.
struct InverseRopeParams {
  TensorView o{};          // bf16 [T, H, D]
  TensorView positions{};  // i64 [T], 0 <= p < rows of cos_sin
  TensorView cos_sin{};    // f32 [max_positions, R], R <= D
  TensorView out{};        // bf16 [T, H, D]; may be o itself
};

// inverse_rope_quant: inverse_rope, then FP8 quantisation of its unrounded fp32 values, with one scale per token and 128 channels of the
// group's hpg*D inputs. V4 15.
struct InverseRopeQuantParams {
  TensorView o{};          // bf16 [T, H, D], D a multiple of 128
  TensorView positions{};  // i64 [T]
  TensorView cos_sin{};    // f32 [max_positions, R]
  TensorView out{};        // e4m3 [T, G, hpg*D], G*hpg == H, contiguous
  TensorView scale{};      // f32 [T, G, hpg*D/128], powers of two, contiguous
};

}  // namespace strata
