// e2m1 codes of bf16 pairs with the bits of formats/e2m1.h: two values an instruction, no comparisons.
#pragma once

#include <cstdint>

#include "backends/cuda/ptx/arithmetic.cuh"

namespace strata::cuda {

// Codes of a pair of magnitudes of at most 6, in the low bits of either half. Added to 64, 128 or 256, where bf16 has the step that e2m1
// has below 2, below 4 and from there on, a magnitude is rounded to that step, ties to even; the sum's distance in bits counts the steps.
__device__ __forceinline__ uint32_t e2m1_magnitudes(uint32_t pair) {
  const uint32_t power = ptx::max_bf16x2(pair, 0x3F803F80u) & 0x7F807F80u;  // 1, 2 or 4: the power of two not above, at least 1
  const uint32_t sum = ptx::fma_bf16x2(power, 0x42804280u, pair);           // on 64 powers, whose bits are 0x300 more than the power's
  // The steps in it: 0..4; 2..4; 2..3; and 0, 2 or 4 more: twice the exponent of power, which begins at 127.
  return sum - power - 0x03FE03FEu + (power >> 6);
}
// Of any pair: what is more becomes 6, and so does NaN.
__device__ __forceinline__ uint32_t e2m1_magnitudes_at_most_6(uint32_t pair) { return e2m1_magnitudes(ptx::min_bf16x2(pair, 0x40C040C0u)); }

// Eight values, element i in bits 4i..4i+3: codes(pair) of their magnitudes, and words with their signs.
template <class Codes>
__device__ __forceinline__ uint32_t pack_e2m1(const uint32_t (&magnitudes)[4], const uint32_t (&signed_words)[4], const Codes& codes_of) {
  uint32_t bytes[2];  // a code in each
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t codes = __byte_perm(codes_of(magnitudes[2 * i]), codes_of(magnitudes[2 * i + 1]), 0x6420);
    const uint32_t signs = __byte_perm(signed_words[2 * i], signed_words[2 * i + 1], 0x7531);
    bytes[i] = codes | (signs >> 4 & 0x08080808u);
    bytes[i] |= bytes[i] >> 4;  // two codes in bytes 0 and 2
  }
  return __byte_perm(bytes[0], bytes[1], 0x6420);
}

}  // namespace strata::cuda
