// Scalar decoding of key rows to bf16: the definition that the vector decoders match, and their way out for values they
// do not handle (a scale outside the fast range, a NaN code).
#pragma once

#include <cstdint>
#include <cstring>

#include "attend.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/kv_rows.h"
#include "formats/ue8m0.h"

namespace strata::cpu {

// Dims [begin, begin + count) of one row, as bf16 bits. A run must not cross the border between codes and bf16 dims.
inline void decode_dims_scalar(const RowSource& src, const std::byte* data, const std::byte* scales, int begin, int count,
                               std::uint16_t* out) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
  auto codes = [&](auto scale_of) {
    for (int i = 0; i < count; ++i) out[i] = to_bf16(to_float(E4m3{bytes[begin + i]}) * scale_of(begin + i)).bits;
  };
  auto copy = [&](std::size_t offset) { std::memcpy(out, data + offset, static_cast<std::size_t>(count) * 2); };
  const auto first = static_cast<std::size_t>(begin);
  switch (src.format) {
    case KvFormat::fp8_tensor: return codes([&](int) { return src.scale; });
    case KvFormat::fp8_ds_mla_v4:
      if (begin >= kV4NopeDim) return copy(first * 2 - kV4NopeDim);
      return codes([&](int d) { return to_float(E8m0{static_cast<std::uint8_t>(scales[d / 64])}); });
    case KvFormat::fp8_ds_mla:
      if (begin >= kMlaLatentDim) return copy(kMlaRopeOffset + (first - kMlaLatentDim) * 2);
      return codes([&](int d) {
        float s;
        std::memcpy(&s, data + kMlaScaleOffset + 4 * (d / kMlaTile), 4);
        return s;
      });
    default: return copy(first * 2);
  }
}

}  // namespace strata::cpu
