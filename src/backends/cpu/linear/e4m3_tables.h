// Converts e4m3 to bf16 by table look-ups of bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "formats/bf16.h"
#include "formats/e4m3.h"

namespace strata::cpu {

// load_e4m3_pairs returns values times 2^-8, so their scales are multiplied by this.
inline constexpr float kE4m3PairUnit = 0x1p8f;
// Whether a scale stays finite after that.
inline bool scales_e4m3_pairs(float scale) { return scale < 0x1p119f && scale > -0x1p119f; }

struct alignas(64) E4m3Tables {
  std::array<uint8_t, 128> low, high;  // the bytes of a value's bf16, without its sign
  std::array<uint8_t, 64> order;       // the position among 64 values that each byte comes from
};

inline constexpr E4m3Tables kE4m3Tables = [] {
  E4m3Tables t{};
  for (size_t i = 0; i < t.low.size(); ++i) {
    const uint16_t bits = to_bf16(to_float(E4m3{static_cast<uint8_t>(i)})).bits;
    t.low[i] = static_cast<uint8_t>(bits & 0xFFu);
    t.high[i] = static_cast<uint8_t>(bits >> 8);
  }
  // Byte 16 * j + 8 * h + 2 * i + o goes through interleaving h of 128-bit block j to 32-bit lane 4 * j + i of vector 2 * h + o.
  for (size_t byte = 0; byte < t.order.size(); ++byte) {
    const size_t j = byte / 16, h = byte / 8 % 2, i = byte / 2 % 4, o = byte % 2;
    t.order[byte] = static_cast<uint8_t>(16 * (2 * h + o) + 4 * j + i);
  }
  return t;
}();

}  // namespace strata::cpu
