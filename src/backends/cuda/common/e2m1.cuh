// e2m1 codes of a lane's values with the bits of formats/e2m1.h, at half the instructions of its comparisons.
#pragma once

#include <cstdint>

namespace strata::cuda {

// Code of a value with at most 8 significant bits (a bf16 times a power of two). Times 2^-126 the magnitude is in fp32 what it is in
// e2m1: 1 becomes the smallest normal, 0.5 a subnormal; so one rounding of the bits, ties to even, leaves exponent and mantissa of the
// code. What the product loses is far below 0.25, which is 0 anyway. NaN becomes 6.
__device__ __forceinline__ uint32_t e2m1_code(float v) {
  const uint32_t magnitude = __float_as_uint(fminf(fabsf(v) * 0x1p-126f, 6 * 0x1p-126f));
  const uint32_t code = (magnitude + 0x1FFFFFu + (magnitude >> 22 & 1u)) >> 22;
  return (__float_as_uint(v) >> 28 & 8u) | code;
}

// Element i in bits 4i..4i+3.
__device__ __forceinline__ uint32_t pack_e2m1(const float (&v)[8]) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) word |= e2m1_code(v[i]) << 4 * i;
  return word;
}

}  // namespace strata::cuda
