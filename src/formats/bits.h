// fp32 seen as bits, and bytes seen as fp32. Usable from host and CUDA code: the builtins need no relaxed-constexpr flag, which
// std::bit_cast does.
#pragma once

#include <cstdint>

#include "formats/macros.h"

namespace strata {

STRATA_HOST_DEVICE constexpr uint32_t float_bits(float v) { return __builtin_bit_cast(uint32_t, v); }
STRATA_HOST_DEVICE constexpr float float_from_bits(uint32_t u) { return __builtin_bit_cast(float, u); }

STRATA_HOST_DEVICE constexpr float absolute(float v) { return float_from_bits(float_bits(v) & 0x7FFFFFFFu); }

// Cache pages have any alignment, so a multi-byte value is put together byte by byte (little-endian; compilers make it one access).
STRATA_HOST_DEVICE constexpr uint16_t load_u16(const uint8_t* bytes) { return static_cast<uint16_t>(bytes[0] | bytes[1] << 8); }
STRATA_HOST_DEVICE constexpr void store_u16(uint8_t* bytes, uint16_t v) {
  bytes[0] = static_cast<uint8_t>(v);
  bytes[1] = static_cast<uint8_t>(v >> 8);
}
STRATA_HOST_DEVICE constexpr float load_f32(const uint8_t* bytes) {
  return float_from_bits(uint32_t{load_u16(bytes)} | uint32_t{load_u16(bytes + 2)} << 16);
}
STRATA_HOST_DEVICE constexpr void store_f32(uint8_t* bytes, float v) {
  store_u16(bytes, static_cast<uint16_t>(float_bits(v)));
  store_u16(bytes + 2, static_cast<uint16_t>(float_bits(v) >> 16));
}

}  // namespace strata
