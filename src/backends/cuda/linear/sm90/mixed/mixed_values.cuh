// e4m3 values times a power of two as bf16: sign, exponent and mantissa are moved to their bf16 positions. A product corrects the
// exponent's bias, which also makes subnormals exact. sm_90.
#pragma once

#include "backends/cuda/ptx/arithmetic.cuh"

namespace strata::cuda::sm90 {

// A scale as two factors, each a pair of bf16. `rest` is what does not fit into one factor with the bias correction, 2^120 (biases 7 and
// 127).
struct MixedScale {
  static constexpr float kMaxScale = 0x1p7f;
  uint32_t biased, rest;
  bool has_rest;
  __device__ __forceinline__ explicit MixedScale(float scale) : has_rest(scale > kMaxScale) {
    biased = pair(has_rest ? 0x1p127f : scale * 0x1p120f), rest = pair(scale / kMaxScale);
  }

 private:
  static __device__ __forceinline__ uint32_t pair(float power) { return __byte_perm(__float_as_uint(power), 0, 0x3232); }
};

// From a word mixed_word(a, b, c, d): the pairs (a, b) and (c, d), in seven instructions.
__device__ __forceinline__ void mixed_values(uint32_t word, const MixedScale& scale, uint32_t& ab, uint32_t& cd) {
  ab = ptx::mul_bf16x2(word & 0x87F087F0, scale.biased);
  cd = ptx::mul_bf16x2((word << 4 & 0x80F080F0) | (word >> 4 & 0x07000700), scale.biased);
}

// A lane's operands of wgmma for 64 channels: for each 16 those of its two rows. units: its two 16-byte units of a packed block
// (config.h).
using MixedOperands = uint32_t[4][4];
__device__ __forceinline__ void mixed_operands(MixedOperands& values, const uint4* units, const MixedScale& scale) {
  const uint4 rows[2] = {units[0], units[32]};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    mixed_values(rows[h].x, scale, values[0][h], values[0][2 + h]);
    mixed_values(rows[h].y, scale, values[1][h], values[1][2 + h]);
    mixed_values(rows[h].z, scale, values[2][h], values[2][2 + h]);
    mixed_values(rows[h].w, scale, values[3][h], values[3][2 + h]);
  }
  if (scale.has_rest) {
#pragma unroll
    for (int i = 0; i < 16; ++i) values[i / 4][i % 4] = ptx::mul_bf16x2(values[i / 4][i % 4], scale.rest);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(values[i / 4][i % 4]));  // converted before the next wait, not after
}

}  // namespace strata::cuda::sm90
