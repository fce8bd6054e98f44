// Converts bf16 pairs to e2m1 with the bits of formats/e2m1.h: two values per instruction, no comparisons.
#pragma once

#include <cstdint>

#include "backends/cuda/ptx/arithmetic.cuh"

namespace strata::cuda {

// e2m1 bits of a pair of magnitudes of at most 6, in the low bits of each half. Adding 64, 128 or 256, at which bf16 has e2m1's step below
// 2, below 4 and above, rounds a magnitude to that step, ties to even. The sum's distance in bits counts the steps.
__device__ __forceinline__ uint32_t e2m1_magnitudes(uint32_t pair) {
  const uint32_t power = ptx::max_bf16x2(pair, 0x3F803F80u) & 0x7F807F80u;  // 1, 2 or 4: the power of two not above, at least 1
  const uint32_t sum = ptx::fma_bf16x2(power, 0x42804280u, pair);           // on 64 powers, whose bits are 0x300 more than the power's
  // The steps in it: 0..4; 2..4; 2..3; and 0, 2 or 4 more: twice the exponent of power, which begins at 127.
  return sum - power - 0x03FE03FEu + (power >> 6);
}
// For any pair: larger magnitudes become 6, and so does NaN.
__device__ __forceinline__ uint32_t e2m1_magnitudes_at_most_6(uint32_t pair) { return e2m1_magnitudes(ptx::min_bf16x2(pair, 0x40C040C0u)); }

// Packs eight values, element i in bits 4i..4i+3. quantize(pair): e2m1 bits of magnitudes; signs are taken from the words.
template <class Quantize>
__device__ __forceinline__ uint32_t pack_e2m1(const uint32_t (&magnitudes)[4], const uint32_t (&signed_words)[4],
                                              const Quantize& quantize) {
  uint32_t bytes[2];  // one e2m1 value in each
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t quantized = __byte_perm(quantize(magnitudes[2 * i]), quantize(magnitudes[2 * i + 1]), 0x6420);
    const uint32_t signs = __byte_perm(signed_words[2 * i], signed_words[2 * i + 1], 0x7531);
    bytes[i] = quantized | (signs >> 4 & 0x08080808u);
    bytes[i] |= bytes[i] >> 4;  // two values in bytes 0 and 2
  }
  return __byte_perm(bytes[0], bytes[1], 0x6420);
}

}  // namespace strata::cuda
