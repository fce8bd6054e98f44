// Scalar decoding of one key row to bf16: the definition that the vector decoders must match, and their way out for
// rows they do not handle (a scale outside the fast range, a NaN code).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "attend.h"

namespace strata::cpu {

inline float e4m3_to_float(std::uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  float v;
  if ((code & 0x7F) == 0x7F) {
    v = std::bit_cast<float>(0x7FC00000u);
  } else if (exponent == 0) {
    v = static_cast<float>(mantissa) * 0x1p-9f;
  } else {
    v = std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 120) << 23 | static_cast<std::uint32_t>(mantissa) << 20);
  }
  return (code & 0x80) ? -v : v;
}

inline float ue8m0_to_float(std::uint8_t b) {
  if (b == 255) return std::bit_cast<float>(0x7FC00000u);
  return std::bit_cast<float>(b == 0 ? 0x00400000u : static_cast<std::uint32_t>(b) << 23);
}

inline std::uint16_t round_to_bf16(float v) {
  const auto u = std::bit_cast<std::uint32_t>(v);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

inline float bf16_to_float(std::uint16_t v) { return std::bit_cast<float>(static_cast<std::uint32_t>(v) << 16); }

// out[head_dim] bf16.
inline void decode_row_scalar(const RowSource& src, const std::byte* data, const std::byte* scales, int head_dim,
                              std::uint16_t* out) {
  const auto* code = reinterpret_cast<const std::uint8_t*>(data);
  switch (src.format) {
    case KvFormat::fp8_tensor:
      for (int d = 0; d < head_dim; ++d) out[d] = round_to_bf16(e4m3_to_float(code[d]) * src.scale);
      return;
    case KvFormat::fp8_ds_mla_v4:
      for (int d = 0; d < 448; ++d)
        out[d] = round_to_bf16(e4m3_to_float(code[d]) * ue8m0_to_float(static_cast<std::uint8_t>(scales[d / 64])));
      std::memcpy(out + 448, data + 448, 128);
      return;
    case KvFormat::fp8_ds_mla: {
      float scale[4];
      std::memcpy(scale, data + 512, 16);
      for (int d = 0; d < 512; ++d) out[d] = round_to_bf16(e4m3_to_float(code[d]) * scale[d / 128]);
      std::memcpy(out + 512, data + 528, 128);
      return;
    }
    default: std::memcpy(out, data, static_cast<std::size_t>(head_dim) * 2); return;
  }
}

}  // namespace strata::cpu
