// Converts values to and from the bits of the small formats, with the results of src/formats. The code has no branches, so that items do
// not diverge; only a NaN among eight values takes one. For host and device code; the functions on runs of eight values are for device code
// only.
#pragma once

#include <cstdint>

#include "formats/bits.h"

namespace strata::opencl {

#ifdef __OPENCL_CPP_VERSION__
inline bool is_nan(float v) { return isnan(v); }
inline float magnitude_of(float v) { return fabs(v); }
inline float at_most(float v, float bound) { return fmin(v, bound); }
inline float at_least(float v, float bound) { return fmax(v, bound); }
inline float multiply_add(float a, float b, float c) { return fma(a, b, c); }
#else
inline bool is_nan(float v) { return v != v; }
inline float magnitude_of(float v) { return absolute(v); }
inline float at_most(float v, float bound) { return v < bound ? v : bound; }
inline float at_least(float v, float bound) { return v > bound ? v : bound; }
inline float multiply_add(float a, float b, float c) { return a * b + c; }  // only for exact products
#endif

// to_bf16 of a value that is not NaN, in the upper half of the word. The lower half is unspecified.
inline uint32_t bf16_upper(float v) { return float_bits(v) + 0x7FFFu + (float_bits(v) >> 16 & 1u); }
// As to_bf16.
inline uint32_t bf16_bits(float v) { return (is_nan(v) ? float_bits(v) | 0x400000u : bf16_upper(v)) >> 16; }
// As round_to_bf16.
inline float nearest_bf16(float v) { return float_from_bits(bf16_bits(v) << 16); }

// As to_e4m3, for a value that is not NaN. Adds a power of two whose unit in the last place is e4m3's step at v: the sum's last bits are
// then the number of steps, rounded to nearest even. The count starts at 0x38; with the exponent added above the three mantissa bits, the
// last byte is the e4m3 value.
inline uint32_t e4m3_bits_no_nan(float v) {
  const float finite = at_most(magnitude_of(v), 448.0f);
  const uint32_t exponent = float_bits(at_least(finite, 0x1p-6f)) & 0x7F800000u;
  const uint32_t sum = float_bits(multiply_add(float_from_bits(exponent), 0x1p20f + 7.0f, finite));  // 7 = 0x38 steps of 2^(20 - 23)
  return ((sum + (exponent >> 20)) & 0x7Fu) | (float_bits(v) >> 24 & ~0x7Fu);
}
// As to_e4m3.
inline uint32_t e4m3_bits(float v) { return is_nan(v) ? float_bits(v) >> 24 | 0x7Fu : e4m3_bits_no_nan(v); }
// As to_float of an e4m3 value.
constexpr float e4m3_value(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7Fu;
  const float normal = float_from_bits((magnitude << 20) + (120u << 23));
  const float finite = magnitude < 8 ? normal * 2.0f - 0x1p-6f : normal;
  return float_from_bits((bits & 0x80u) << 24 | (magnitude == 0x7F ? 0x7FC00000u : float_bits(finite)));
}

// As to_e2m1. Below 1 the steps are 0.5; from 1 on a value keeps one bit of mantissa.
constexpr uint32_t e2m1_bits(float v) {
  const uint32_t bits = float_bits(v), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t small = float_bits(float_from_bits(magnitude) + 0x1p22f) - float_bits(0x1p22f);
  const uint32_t normal = ((magnitude + 0x1FFFFFu + (magnitude >> 22 & 1u)) >> 22) - (126u << 1);
  const uint32_t magnitude_bits = magnitude < float_bits(1.0f) ? small : normal;
  return (bits >> 28 & 8u) | (magnitude_bits < 7u ? magnitude_bits : 7u);
}
// As e2m1_to_float.
constexpr float e2m1_value(uint32_t bits) {
  const float normal = float_from_bits(((bits & 7u) << 22) + (126u << 23));
  const float magnitude = (bits & 7u) < 2 ? normal * 2.0f - 1.0f : normal;
  return float_from_bits((bits & 8u) << 28 | float_bits(magnitude));
}

// As to_float of a ue8m0 byte.
constexpr float e8m0_value(uint32_t byte) { return float_from_bits(byte == 255u ? 0x7FC00000u : byte == 0u ? 0x00400000u : byte << 23); }

// As e4m3_exponent of an absmax, without dividing by 448 = 1.75 * 2^8. Below 2^-126 that quotient is subnormal; up to an absmax of
// 224 * 2^-149 it is 0.
constexpr int block_exponent(float top) {
  const uint32_t bits = float_bits(top);
  const int normal = static_cast<int>(bits >> 23) - 135 + ((bits & 0x7FFFFFu) > 0x600000u ? 1 : 0);
  const int finite = normal >= -126 ? normal : bits > 224u ? -126 : -127;
  return bits < 0x7F800000u ? finite : bits > 0x7F800000u ? 129 : 128;
}
// The exponent of an mxfp4 block: min(ceil_log2(top / 6), 127), with 6 = 1.5 * 2^2. top is at least 6 * 2^-126.
constexpr int mxfp4_exponent(float top) {
  const uint32_t bits = float_bits(top);
  const int finite = static_cast<int>(bits >> 23) - 129 + ((bits & 0x7FFFFFu) > 0x400000u ? 1 : 0);
  return bits < 0x7F800000u ? finite : 127;
}

#ifdef __OPENCL_CPP_VERSION__
// Whether eight values include a NaN.
inline bool has_nans(const float* v) {
  return (isunordered(v[0], v[1]) | isunordered(v[2], v[3]) | isunordered(v[4], v[5]) | isunordered(v[6], v[7])) != 0;
}

// Eight values times factor as e4m3.
inline uint2 e4m3_run(const float* values, float factor) {
  float v[8];
  uint32_t b[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = values[i] * factor, b[i] = e4m3_bits_no_nan(v[i]);
  if (has_nans(v)) {
#pragma unroll
    for (int i = 0; i < 8; ++i) b[i] = e4m3_bits(v[i]);
  }
  return (uint2)(b[0] | b[1] << 8 | b[2] << 16 | b[3] << 24, b[4] | b[5] << 8 | b[6] << 16 | b[7] << 24);
}
// The same as e2m1.
inline uint32_t e2m1_run(const float* values, float factor) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) word |= e2m1_bits(values[i] * factor) << 4 * i;
  return word;
}
// Eight values as bf16.
inline uint4 bf16_run(const float* values) {
  uint32_t b[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) b[i] = bf16_upper(values[i]);
  if (has_nans(values)) {
#pragma unroll
    for (int i = 0; i < 8; ++i) b[i] = bf16_bits(values[i]) << 16;
  }
  return (uint4)(b[0] >> 16 | (b[1] & 0xFFFF0000u), b[2] >> 16 | (b[3] & 0xFFFF0000u), b[4] >> 16 | (b[5] & 0xFFFF0000u),
                 b[6] >> 16 | (b[7] & 0xFFFF0000u));
}

// The maximum of `floor` and kCount floats, which begin at a multiple of 16 bytes. kCount is a multiple of 4.
template <int kCount>
inline float largest_of(const __local float* from, float floor) {
  float4 top = *(const __local float4*)from;
#pragma unroll
  for (int i = 4; i < kCount; i += 4) top = fmax(top, *(const __local float4*)(from + i));
  return fmax(fmax(fmax(top.x, top.y), fmax(top.z, top.w)), floor);
}
// The largest magnitude of eight values; NaNs are ignored.
inline float largest_magnitude(const float* values) {
  float top = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) top = fmax(top, fabs(values[i]));
  return top;
}
#endif

}  // namespace strata::opencl
