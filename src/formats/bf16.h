// bfloat16: the upper half of an fp32. Usable from host and CUDA code.
#pragma once

#include <bit>
#include <cstdint>

#include "formats/macros.h"
#include "strata/dtype.h"

namespace strata {

STRATA_HOST_DEVICE constexpr float to_float(Bf16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

// Round to nearest, ties to even. NaN stays NaN (quiet, sign kept); overflow goes to infinity.
STRATA_HOST_DEVICE constexpr Bf16 to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((u >> 16) | 0x0040u)};
  return {static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

static_assert(to_bf16(1.0f).bits == 0x3F80);
static_assert(to_bf16(1.00390625f).bits == 0x3F80 && to_bf16(1.01171875f).bits == 0x3F82, "ties to even");

}  // namespace strata
