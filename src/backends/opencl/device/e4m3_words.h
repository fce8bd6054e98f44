// Converts words of e4m3 values to words of bf16 values.
#pragma once

#include <cstdint>

#include "backends/opencl/device/convert.h"

namespace strata::opencl {

inline uint32_t pair_of(uint32_t low, uint32_t high) { return low | high << 16; }
// A pair from two fp32 values that bf16 represents exactly.
inline uint32_t bf16_pair(float low, float high) { return as_uint(low) >> 16 | (as_uint(high) & 0xFFFF0000u); }
// The lower halves of two pairs, and the upper halves.
inline uint32_t lows_of(uint32_t a, uint32_t b) { return (a & 0xFFFFu) | b << 16; }
inline uint32_t highs_of(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xFFFF0000u); }

// The e4m3 values in the first and third byte of a word, times scale. 2^120 corrects the exponent's bias.
inline uint32_t decode_pair(uint32_t values, float scale, bool is_rounded) {
  const uint32_t pair = (values & 0x00800080u) << 8 | (values & 0x007F007Fu) << 4;
  const float low = as_float(pair << 16) * 0x1p120f * scale, high = as_float(pair & 0xFFFF0000u) * 0x1p120f * scale;
  if (is_rounded) return pair_of(bf16_bits(low), bf16_bits(high));
  return pair_of(as_uint(low) >> 16, as_uint(high) >> 16);
}
inline bool has_nan(uint32_t values) { return (((values & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) != 0; }
// bf16 NaN for each value of a word of decode_pair that is NaN, otherwise 0.
inline uint32_t nan_bits(uint32_t values) {
  return ((values & 0x7Fu) == 0x7Fu ? 0x7FC0u : 0u) | ((values & 0x7F0000u) == 0x7F0000u ? 0x7FC00000u : 0u);
}

// Eight e4m3 values times scale.
inline uint4 decode_words(uint2 stored, float scale, bool is_rounded) {
  // The values of each word: 0 and 2, 1 and 3, 4 and 6, 5 and 7.
  uint32_t w[4] = {stored.x, stored.x >> 8, stored.y, stored.y >> 8};
  uint32_t v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = decode_pair(w[i], scale, is_rounded);
  if (has_nan(stored.x) || has_nan(stored.y)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] |= nan_bits(w[i]);
  }
  return (uint4)(lows_of(v[0], v[1]), highs_of(v[0], v[1]), lows_of(v[2], v[3]), highs_of(v[2], v[3]));
}

}  // namespace strata::opencl
