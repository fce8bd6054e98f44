// IEEE half precision. Usable from host and CUDA code.
#pragma once

#include <cstdint>

#include "formats/bits.h"
#include "formats/macros.h"
#include "strata/dtype.h"

namespace strata {

STRATA_HOST_DEVICE constexpr float to_float(Fp16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t exponent = (v.bits >> 10) & 31u;
  const uint32_t mantissa = v.bits & 0x3FFu;
  if (exponent == 31) return float_from_bits(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) return float_from_bits(sign | float_bits(static_cast<float>(mantissa) * 0x1p-24f));
  return float_from_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

// Round to nearest, ties to even. NaN stays NaN (quiet, sign and upper payload kept); from 65520 on the result is infinity.
STRATA_HOST_DEVICE constexpr Fp16 to_fp16(float v) {
  const uint32_t u = float_bits(v);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu))};
  if (magnitude >= float_bits(65520.0f)) return {static_cast<uint16_t>(sign | 0x7C00u)};
  if (magnitude < float_bits(0x1p-14f)) {
    // The sum is in [0.5, 1), where fp32 has steps of 2^-24: the addition rounds to the subnormal step, ties to even.
    const uint32_t steps = float_bits(float_from_bits(magnitude) + 0.5f) - float_bits(0.5f);
    return {static_cast<uint16_t>(sign | steps)};
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)))};
}

static_assert(to_fp16(1.0f).bits == 0x3C00 && to_fp16(65504.0f).bits == 0x7BFF && to_fp16(65520.0f).bits == 0x7C00);
static_assert(to_fp16(0x1p-24f).bits == 1 && to_fp16(0x1p-25f).bits == 0 && to_float(Fp16{0x0400}) == 0x1p-14f);

}  // namespace strata
