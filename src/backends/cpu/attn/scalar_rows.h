// Scalar decoding of key rows: used by the fp32 path. It is also the definition that the bf16 vector decoders match, and their fallback for
// values that they do not handle (a scale outside the fast range, a NaN).
#pragma once

#include <cstdint>
#include <cstring>

#include "attend.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/kv_rows.h"
#include "formats/ue8m0.h"

namespace strata::cpu {

// A value as bf16 bits, or as the fp32 value of these.
inline void store_rounded(float v, std::uint16_t* out) { *out = to_bf16(v).bits; }
inline void store_rounded(float v, float* out) { *out = round_to_bf16(v); }

inline void load_dims(const std::byte* from, int count, std::uint16_t* out) { std::memcpy(out, from, static_cast<std::size_t>(count) * 2); }
inline void load_dims(const std::byte* from, int count, float* out) {
  for (int i = 0; i < count; ++i) {
    Bf16 v;
    std::memcpy(&v, from + 2 * i, 2);
    out[i] = to_float(v);
  }
}

// Dimensions [64 * group, 64 * group + 64) of one row: e4m3 values of one scale, or bf16 values.
template <class T>
inline void decode_group(const RowSource& src, const std::byte* data, const std::byte* scales, int group, T* out) {
  constexpr int kDims = 64;
  const int begin = kDims * group;
  const auto dequantize = [&](float scale) {
    for (int i = 0; i < kDims; ++i) store_rounded(kE4m3Values[static_cast<std::uint8_t>(data[begin + i])] * scale, out + i);
  };
  switch (src.format) {
    case KvFormat::fp8_tensor: return dequantize(src.scale);
    case KvFormat::fp8_ds_mla_v4:
      if (begin >= kV4NopeDim) return load_dims(data + 2 * begin - kV4NopeDim, kDims, out);
      return dequantize(to_float(E8m0{static_cast<std::uint8_t>(scales[group])}));
    case KvFormat::fp8_ds_mla:
      if (begin >= kMlaLatentDim) return load_dims(data + kMlaRopeOffset + 2 * (begin - kMlaLatentDim), kDims, out);
      float scale;
      std::memcpy(&scale, data + kMlaScaleOffset + 4 * (begin / kMlaTile), 4);
      return dequantize(scale);
    default: return load_dims(data + 2 * begin, kDims, out);
  }
}

}  // namespace strata::cpu
