// The rotary table and where its lanes are in a vector: V4 specification 5.4, MLA specification 6.
#pragma once

#include <cstdint>

#include "strata/ops/rope_lanes.h"
#include "strata/tensor.h"

namespace strata {

// Parameters of the frequencies. No YaRN when factor <= 1.
struct RopeConfig {
  int32_t dim = 64;  // rotary lanes R; dim/2 frequencies
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_position = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;      // YaRN: the bounds of the ramp are rounded outward to whole pairs (MLA 6.1: floor and ceil)
  double mscale_gain = 1.0;  // multiplies cos and sin: 1 for V4; MLA: ms(factor, mscale) / ms(factor, mscale_all_dim) * attn_factor
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// fp32 frequencies f[0..dim/2) after the YaRN blend: V4 5.4, MLA 6.1. Throws invalid_argument for an odd dim or one outside [2, 1024],
// theta that is not above 1, and with YaRN lengths and betas that are not positive.
void rope_frequencies(const RopeConfig& config, float* frequencies);

// f32 [max_positions, dim]: row p = cos(p*f[0..dim/2)) then sin(p*f[0..dim/2)). The angle is the fp32 product, its cosine is taken in
// double. Throws as rope_frequencies does, and for max_positions outside [1, 2^24].
[[nodiscard]] Tensor build_rope_table(const RopeConfig& config, int64_t max_positions, const std::shared_ptr<Device>& device);

// out = o with the rotation by the query's position taken back on the last R lanes, every head: V4 15, step 1. fp32 inside, one rounding.
// Rows of o that hold no token (padding) must be finite or zero; positions there must be inside the table. Errors of both ops here:
// invalid_argument for shapes, dtypes, devices; on host-visible memory also for positions outside the table.
struct InverseRopeParams {
  TensorView o{};          // bf16 [T, H, D]
  TensorView positions{};  // i64 [T], 0 <= p < rows of cos_sin
  TensorView cos_sin{};    // f32 [max_positions, R], R <= D
  TensorView out{};        // bf16 [T, H, D]; may be o itself
};

// The same followed by FP8 quantisation per token and 128 channels of the group's hpg*D inputs, from the unrounded fp32 values: V4 15.
struct InverseRopeQuantParams {
  TensorView o{};          // bf16 [T, H, D], D a multiple of 128
  TensorView positions{};  // i64 [T]
  TensorView cos_sin{};    // f32 [max_positions, R]
  TensorView out{};        // e4m3 [T, G, hpg*D], G*hpg == H, contiguous
  TensorView scale{};      // f32 [T, G, hpg*D/128], powers of two, contiguous
};

}  // namespace strata
