// e2m1 codes of bf16 pairs with the bits of formats/e2m1.h: two values an instruction, no comparisons.
#pragma once

#include <cstdint>

#include "backends/cuda/ptx/arithmetic.cuh"

namespace strata::cuda {

// Magnitude codes of a pair, in the low bits of either half. Added to 64, 128 or 256, where bf16 has the step that e2m1 has below 2, below
// 4 and from there on, a magnitude is rounded to that step, ties to even; the sum's distance in bits counts the steps. NaN becomes 6.
__device__ __forceinline__ uint32_t e2m1_magnitudes(uint32_t pair) {
  const uint32_t a = ptx::min_bf16x2(pair & 0x7FFF7FFFu, 0x40C040C0u);   // at most 6
  const uint32_t power = ptx::max_bf16x2(a, 0x3F803F80u) & 0x7F807F80u;  // 1, 2 or 4: the power of two not above, at least 1
  const uint32_t step_base = power + 0x03000300u;                        // times 64
  const uint32_t steps = ptx::add_bf16x2(a, step_base) - step_base;      // 0..4; 2..4; 2..3
  return steps + (power >> 6) - 0x00FE00FEu;                             // 0, 2 or 4 more: twice the exponent of power
}

// Eight values, element i in bits 4i..4i+3.
__device__ __forceinline__ uint32_t pack_e2m1(const uint32_t (&pairs)[4]) {
  uint32_t bytes[2];  // a code in each
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t codes = __byte_perm(e2m1_magnitudes(pairs[2 * i]), e2m1_magnitudes(pairs[2 * i + 1]), 0x6420);
    const uint32_t signs = __byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x7531);
    bytes[i] = codes | (signs >> 4 & 0x08080808u);
    bytes[i] |= bytes[i] >> 4;  // two codes in bytes 0 and 2
  }
  return __byte_perm(bytes[0], bytes[1], 0x6420);
}

}  // namespace strata::cuda
