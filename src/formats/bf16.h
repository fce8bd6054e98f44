// bfloat16: the upper half of an fp32. Usable from host and CUDA code.
#pragma once

#include <cstdint>

#include "formats/bits.h"
#include "formats/macros.h"
#include "strata/dtype.h"

namespace strata {

STRATA_HOST_DEVICE constexpr float to_float(Bf16 v) { return float_from_bits(static_cast<uint32_t>(v.bits) << 16); }

// Round to nearest, ties to even. NaN stays NaN (quiet, sign kept); overflow goes to infinity.
STRATA_HOST_DEVICE constexpr Bf16 to_bf16(float v) {
  const uint32_t u = float_bits(v);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((u >> 16) | 0x0040u)};
  return {static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

// The bf16 nearest to v, as fp32.
STRATA_HOST_DEVICE constexpr float round_to_bf16(float v) { return to_float(to_bf16(v)); }

static_assert(to_bf16(1.0f).bits == 0x3F80);
static_assert(to_bf16(1.00390625f).bits == 0x3F80 && to_bf16(1.01171875f).bits == 0x3F82, "ties to even");

}  // namespace strata
