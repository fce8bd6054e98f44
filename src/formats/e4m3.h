// e4m3 (OCP E4M3 "fn"): 4 exponent bits of bias 7, 3 mantissa bits, no infinity, 0x7F and 0xFF NaN, largest 448, subnormal step 2^-9.
// V4 specification section 1. Usable from host and CUDA code.
#pragma once

#include <array>
#include <cstdint>

#include "formats/bits.h"
#include "formats/macros.h"
#include "strata/dtype.h"

namespace strata {

inline constexpr float kE4m3Max = 448.0f;

STRATA_HOST_DEVICE constexpr float to_float(E4m3 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x80u) << 24;
  const uint32_t exponent = (v.bits >> 3) & 15u;
  const uint32_t mantissa = v.bits & 7u;
  if ((v.bits & 0x7Fu) == 0x7Fu) return float_from_bits(sign | 0x7FC00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return float_from_bits(sign | float_bits(magnitude));
  }
  return float_from_bits(sign | (exponent + 120u) << 23 | mantissa << 20);
}

// Clamp to [-448, 448], then round to nearest, ties to even. NaN stays NaN, its sign kept.
STRATA_HOST_DEVICE constexpr E4m3 to_e4m3(float v) {
  const uint32_t u = float_bits(v);
  const uint32_t sign = (u >> 24) & 0x80u;
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint8_t>(sign | 0x7Fu)};
  if (magnitude >= float_bits(kE4m3Max)) return {static_cast<uint8_t>(sign | 0x7Eu)};
  if (magnitude < float_bits(0x1p-6f)) {
    // The sum is in [2^14, 2^15), where fp32 has steps of 2^-9: the addition rounds to the subnormal step, ties to even.
    const uint32_t steps = float_bits(float_from_bits(magnitude) + 0x1p14f) - float_bits(0x1p14f);
    return {static_cast<uint8_t>(sign | steps)};
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return {static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)))};
}

// All 256 values, for host code that decodes by table.
inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (int i = 0; i < 256; ++i) values[static_cast<size_t>(i)] = to_float(E4m3{static_cast<uint8_t>(i)});
  return values;
}();

static_assert(to_e4m3(256.0f).bits == 0x78, "V4 specification 19");
static_assert(to_e4m3(1e30f).bits == 0x7E && to_e4m3(-1e30f).bits == 0xFE && to_float(E4m3{0x7E}) == 448.0f);
static_assert(to_e4m3(0x1p-9f).bits == 1 && to_e4m3(0x1p-10f).bits == 0 && to_e4m3(0x1.8p-9f).bits == 2, "subnormals, ties to even");
static_assert(to_e4m3(-0.0f).bits == 0x80);

}  // namespace strata
