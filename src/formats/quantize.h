// The block quantisers of the caches and of activations. Source values are fp32 or bf16 and finite. Values that are not finite stay
// visible: a NaN element becomes NaN (and is ignored in the absmax); an infinite element makes the scale of its e4m3 block NaN. Usable from
// host and CUDA code (which must not be compiled with approximate division).
#pragma once

#include <cstdint>

#include "formats/bf16.h"
#include "formats/bits.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/macros.h"
#include "formats/ue8m0.h"

namespace strata {

inline constexpr float kKvAmaxFloor = 1e-4f;           // V4 5.5 and 5.6
inline constexpr float kActivationAmaxFloor = 1e-10f;  // V4 5.2 and 15
inline constexpr int kKvBlock = 64;                    // values under one scale in a V4 row
inline constexpr int kActivationBlock = 128;           // consecutive input channels under one scale
inline constexpr int kMxfp4Block = 32;

// The scales of a row of k activations.
STRATA_HOST_DEVICE constexpr int64_t activation_blocks(int64_t k) { return (k + kActivationBlock - 1) / kActivationBlock; }

STRATA_HOST_DEVICE constexpr float to_float(float v) { return v; }

// max(floor, |x[0]|, ..., |x[n-1]|)
template <class T>
STRATA_HOST_DEVICE constexpr float amax(const T* x, int64_t n, float floor) {
  float result = floor;
  for (int64_t i = 0; i < n; ++i) {
    const float a = absolute(to_float(x[i]));
    if (a > result) result = a;
  }
  return result;
}

// The exponent of the smallest power of two s with a <= 448 s.
STRATA_HOST_DEVICE constexpr int e4m3_exponent(float a) { return ceil_log2(a / kE4m3Max); }

// codes[i] = e4m3(x[i] / s), s = max(absmax, floor) / 448 rounded up to a power of two. Returns s.
template <class T>
STRATA_HOST_DEVICE constexpr float quantize_e4m3_pow2(const T* x, int64_t n, float floor, E4m3* codes) {
  const int exponent = e4m3_exponent(amax(x, n, floor));
  for (int64_t i = 0; i < n; ++i) codes[i] = to_e4m3(to_float(x[i]) * pow2(-exponent));
  return to_float(to_e8m0(exponent));
}

// The same with s = max(absmax, floor) / 448 as it is.
template <class T>
STRATA_HOST_DEVICE constexpr float quantize_e4m3_f32(const T* x, int64_t n, float floor, E4m3* codes) {
  const float scale = amax(x, n, floor) / kE4m3Max;
  for (int64_t i = 0; i < n; ++i) codes[i] = to_e4m3(to_float(x[i]) / scale);
  return scale;
}

// V4 5.2: one token's group of at most 128 channels. Returns the scale.
template <class T>
STRATA_HOST_DEVICE constexpr float quantize_activation(const T* x, int64_t n, bool ue8m0, E4m3* codes) {
  return ue8m0 ? quantize_e4m3_pow2(x, n, kActivationAmaxFloor, codes) : quantize_e4m3_f32(x, n, kActivationAmaxFloor, codes);
}

// V4 5.5: 64 bf16-rounded values of an attention key.
template <class T>
STRATA_HOST_DEVICE constexpr E8m0 quantize_kv_block(const T* x, E4m3* codes) {
  const int exponent = e4m3_exponent(amax(x, kKvBlock, kKvAmaxFloor));
  for (int i = 0; i < kKvBlock; ++i) codes[i] = to_e4m3(to_float(x[i]) * pow2(-exponent));
  return to_e8m0(exponent);
}

// V4 5.6 and MLA 11.4: a whole indexer vector of n bf16-rounded values under one power-of-two scale.
template <class T>
STRATA_HOST_DEVICE constexpr float quantize_indexer_fp8(const T* x, int64_t n, float amax_floor, E4m3* codes) {
  return quantize_e4m3_pow2(x, n, amax_floor, codes);
}

// MLA 9.1: 128 latent values. Scales are amax / 448, kept above the smallest normal fp32, or with ue8m0 powers of two with the amax floor
// of 5.5. Values are divided by the scale, as in public writers, for equal bytes.
template <class T>
STRATA_HOST_DEVICE constexpr float quantize_mla_tile(const T* x, bool ue8m0, E4m3* codes) {
  constexpr int64_t kTile = 128;
  if (ue8m0) return quantize_e4m3_pow2(x, kTile, kKvAmaxFloor, codes);
  const float unclamped = amax(x, kTile, 0.0f) / kE4m3Max;
  const float scale = unclamped < 0x1p-126f ? 0x1p-126f : unclamped;
  for (int64_t i = 0; i < kTile; ++i) codes[i] = to_e4m3(to_float(x[i]) / scale);
  return scale;
}

// V4 5.7: 32 values to 16 bytes of e2m1 pairs.
template <class T>
STRATA_HOST_DEVICE constexpr E8m0 quantize_mxfp4_block(const T* x, uint8_t* packed) {
  int exponent = ceil_log2(amax(x, kMxfp4Block, 6 * 0x1p-126f) / 6.0f);
  if (exponent > 127) exponent = 127;
  const float inverse = pow2(-exponent);
  for (int i = 0; i < kMxfp4Block; i += 2) {
    packed[i / 2] = pack_e2m1(to_e2m1(to_float(x[i]) * inverse), to_e2m1(to_float(x[i + 1]) * inverse));
  }
  return to_e8m0(exponent);
}

static_assert(e4m3_exponent(1e-4f) + 127 == 105 && e4m3_exponent(0.1f) + 127 == 115 && e4m3_exponent(1.0f) + 127 == 119,
              "V4 specification 19");
static_assert(e4m3_exponent(1.75f) + 127 == 119 && e4m3_exponent(1.7578125f) + 127 == 120 && e4m3_exponent(448.0f) + 127 == 127);

}  // namespace strata
