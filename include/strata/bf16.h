// Conversions of bfloat16, the upper half of an fp32, for host code that uses the library.
#pragma once

#include <cstdint>

#include "strata/dtype.h"

namespace strata {

// The value of a bf16. Exact.
constexpr float to_float(Bf16 v) { return __builtin_bit_cast(float, static_cast<uint32_t>(v.bits) << 16); }

// The nearest bf16, ties to even. NaN stays NaN (quiet, sign kept); overflow goes to infinity.
constexpr Bf16 to_bf16(float v) {
  const auto u = __builtin_bit_cast(uint32_t, v);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((u >> 16) | 0x0040u)};
  return {static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

}  // namespace strata
