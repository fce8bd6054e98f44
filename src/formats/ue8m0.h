// ue8m0: a scale in one byte, 2^(byte - 127); 255 is NaN, 0 is 2^-127. And the exponent arithmetic of every power-of-two scale,
// on bits as V4 specification section 1 defines it: ceilf(log2f(v)) is off by one next to powers of two.
// Usable from host and CUDA code.
#pragma once

#include <cstdint>

#include "formats/bits.h"
#include "formats/macros.h"
#include "strata/dtype.h"

namespace strata {

STRATA_HOST_DEVICE constexpr float to_float(E8m0 v) {
  if (v.bits == 255) return float_from_bits(0x7FC00000u);
  if (v.bits == 0) return float_from_bits(0x00400000u);  // 2^-127 is a subnormal fp32
  return float_from_bits(static_cast<uint32_t>(v.bits) << 23);
}

// The byte of 2^exponent, clamped to what a byte holds.
STRATA_HOST_DEVICE constexpr E8m0 to_e8m0(int exponent) {
  const int byte = exponent + 127;
  return {static_cast<uint8_t>(byte < 0 ? 0 : byte > 255 ? 255 : byte)};
}

// The smallest e with v <= 2^e, for finite positive normal v. Infinity and NaN give 128 and more, which is the byte of NaN.
STRATA_HOST_DEVICE constexpr int ceil_log2(float v) {
  const uint32_t u = float_bits(v);
  return static_cast<int>((u >> 23) & 255u) - 127 + ((u & 0x7FFFFFu) != 0 ? 1 : 0);
}

// 2^exponent for -126 <= exponent <= 127.
STRATA_HOST_DEVICE constexpr float pow2(int exponent) { return float_from_bits(static_cast<uint32_t>(exponent + 127) << 23); }

static_assert(ceil_log2(1e-4f / 448) == -22 && ceil_log2(0.1f / 448) == -12 && ceil_log2(1.0f / 448) == -8, "V4 specification 19");
static_assert(ceil_log2(1.75f / 448) == -8 && ceil_log2(1.7578125f / 448) == -7 && ceil_log2(3.5f / 448) == -7);
static_assert(ceil_log2(448.0f / 448) == 0 && to_e8m0(0).bits == 127 && to_e8m0(-22).bits == 105 && to_e8m0(-7).bits == 120);
static_assert(to_float(E8m0{127}) == 1.0f && to_float(E8m0{0}) == 0x1p-127f && pow2(-126) == 0x1p-126f && pow2(127) == 0x1p127f);

}  // namespace strata
