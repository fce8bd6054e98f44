// e4m3 codes times a power of two as bf16: sign, exponent and mantissa moved to their places, and the exponent's bias made up for by a
// product, which makes subnormals right as well. sm_90.
#pragma once

#include "backends/cuda/ptx/arithmetic.cuh"

namespace strata::cuda::sm90 {

// A scale as two factors, each a pair of bf16: what does not fit beside the bias, 2^120, as these are 7 and 127, is left to `rest`.
struct MixedScale {
  static constexpr float kMost = 0x1p7f;
  uint32_t biased, rest;
  bool has_rest;
  __device__ __forceinline__ explicit MixedScale(float scale) : has_rest(scale > kMost) {
    biased = pair(has_rest ? 0x1p127f : scale * 0x1p120f), rest = pair(scale / kMost);
  }

 private:
  static __device__ __forceinline__ uint32_t pair(float power) { return __byte_perm(__float_as_uint(power), 0, 0x3232); }
};

// Of a word of mixed_word(a, b, c, d): the pairs (a, b) and (c, d).
__device__ __forceinline__ void mixed_values(uint32_t word, const MixedScale& scale, uint32_t& ab, uint32_t& cd) {
  ab = ptx::mul_bf16x2(word & 0x87F087F0, scale.biased);
  cd = ptx::mul_bf16x2((word << 4 & 0x80F080F0) | (word >> 4 & 0x07000700), scale.biased);
}

}  // namespace strata::cuda::sm90
