// e2m1 (FP4): bits 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; 8..15 are the negatives. Two values share a byte. V4 specification 1 and 5.7.
// Usable from host and CUDA code.
#pragma once

#include <cstdint>

#include "formats/bits.h"
#include "formats/macros.h"

namespace strata {

// The four bits of the value nearest to v, ties to even, saturated at 6. The sign of a value that rounds to zero is kept. The format has no
// NaN: NaN becomes 6, as in the hardware conversions.
STRATA_HOST_DEVICE constexpr uint8_t to_e2m1(float v) {
  const float a = absolute(v);
  // One comparison per midpoint between neighbours: a tie goes up exactly where the upper value is even.
  const int code = !(a <= 0.25f) + !(a < 0.75f) + !(a <= 1.25f) + !(a < 1.75f) + !(a <= 2.5f) + !(a < 3.5f) + !(a <= 5.0f);
  return static_cast<uint8_t>((float_bits(v) >> 28 & 8u) | static_cast<unsigned>(code));
}

// Uses the lower four bits only.
STRATA_HOST_DEVICE constexpr float e2m1_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 8u) << 28;
  const uint32_t exponent = (code >> 1) & 3u;
  const uint32_t mantissa = code & 1u;
  if (exponent == 0) return float_from_bits(sign | (mantissa != 0 ? float_bits(0.5f) : 0u));
  return float_from_bits(sign | (exponent + 126u) << 23 | mantissa << 22);
}

// Byte j of a packed vector holds element 2j in bits 0..3 and element 2j + 1 in bits 4..7.
STRATA_HOST_DEVICE constexpr uint8_t pack_e2m1(uint8_t even, uint8_t odd) { return static_cast<uint8_t>(even | odd << 4); }
STRATA_HOST_DEVICE constexpr float e2m1_element(const uint8_t* packed, int64_t i) {
  return e2m1_to_float(static_cast<uint8_t>(packed[i / 2] >> (i % 2 * 4) & 15));
}

static_assert(to_e2m1(0.25f) == 0 && to_e2m1(0.75f) == 2 && to_e2m1(1.25f) == 2 && to_e2m1(1.75f) == 4, "V4 specification 1");
static_assert(to_e2m1(2.5f) == 4 && to_e2m1(3.5f) == 6 && to_e2m1(5.0f) == 6 && to_e2m1(100.0f) == 7 && to_e2m1(-0.1f) == 8);
static_assert(to_e2m1(6.0f) == 7 && to_e2m1(-0.4f) == 9 && pack_e2m1(7, 9) == 0x97, "V4 specification 19");
static_assert(e2m1_to_float(7) == 6.0f && e2m1_to_float(5) == 3.0f && e2m1_to_float(1) == 0.5f && e2m1_to_float(10) == -1.0f);

}  // namespace strata
