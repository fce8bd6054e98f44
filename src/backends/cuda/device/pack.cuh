// Packs fp32 values into words of bf16 pairs and of four e4m3 values, with the bits of src/formats (NaN included); reads and writes words
// in memory of any alignment.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "backends/cuda/ptx/convert.cuh"
#include "formats/bf16.h"
#include "formats/bits.h"
#include "formats/e4m3.h"
#include "formats/quantize.h"

namespace strata::cuda {

// Bf16{low} | Bf16{high} << 16.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  // The instruction drops the sign of a NaN.
  if (low != low || high != high) return to_bf16(low).bits | uint32_t{to_bf16(high).bits} << 16;
  return ptx::cvt_bf16x2(low, high);
}

// The same for all values of a lane: one branch.
template <int kValues>
__device__ __forceinline__ void pack_bf16(const float (&x)[kValues], uint32_t (&words)[kValues / 2]) {
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kValues; ++i) nan |= x[i] != x[i];
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i) words[i] = ptx::cvt_bf16x2(x[2 * i], x[2 * i + 1]);
  if (!nan) return;
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i) words[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
}

__device__ __forceinline__ float bf16_low(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float bf16_high(uint32_t word) { return __uint_as_float(word & 0xFFFF0000u); }

__device__ __forceinline__ void unpack_bf16(uint4 v, float (&x)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = bf16_low(words[i]);
    x[2 * i + 1] = bf16_high(words[i]);
  }
}

// Quantises f(x[0]), ..., f(x[3]) to four e4m3 values, the first in the lowest byte. f scales. A NaN keeps its sign, as on a CPU; NaNs that
// f makes of other values have none.
template <class F>
__device__ __forceinline__ uint32_t pack_e4m3(const float* x, F f) {
#if __CUDA_ARCH__ >= 890
  uint32_t quantized = ptx::cvt_e4m3x2(f(x[0]), f(x[1])) | uint32_t{ptx::cvt_e4m3x2(f(x[2]), f(x[3]))} << 16;
  // Any NaN (0x7F): the sum carries into bit 7 of its byte. Arithmetic and the instruction drop the sign of a NaN.
  if ((((quantized & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) == 0) return quantized;
#pragma unroll
  for (int i = 0; i < 4; ++i) quantized |= x[i] != x[i] ? (__float_as_uint(x[i]) >> 31) << (8 * i + 7) : 0;
#else
  uint32_t quantized = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) quantized |= uint32_t{to_e4m3(x[i] != x[i] ? x[i] : f(x[i])).bits} << 8 * i;
#endif
  return quantized;
}

__device__ __forceinline__ void unpack_e4m3(uint32_t quantized, float (&x)[4]) {
#if __CUDA_ARCH__ >= 890
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t pair = ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(quantized >> 16 * i));
    const float2 values = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    x[2 * i] = values.x;
    x[2 * i + 1] = values.y;
  }
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = to_float(E4m3{static_cast<uint8_t>(quantized >> 8 * i)});
#endif
}

__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
  const float x[4] = {a, b, c, d};
  return pack_e4m3(x, [](float v) { return v; });
}

// The power-of-two scale of a quantisation block: strata::e4m3_exponent without its division, for amax >= 1e-35 (every quantiser has a
// higher floor). It is the smallest k with amax <= 448 * 2^k = 1.75 * 2^(k + 8), which equals the rounded quotient.
// Not through to_e8m0 and back: with ptxas 13.0.88 for sm_90a, to_float(to_e8m0(of_e4m3(x))) was NaN. It joined the clamp to 255 and the
// comparison with 255 into one VIMNMX, whose predicate is wrong.
struct BlockScale {
  int exponent;  // 128: an infinite amax, whose scale is NaN

  __host__ __device__ static constexpr BlockScale of_e4m3(float amax) {
    const uint32_t u = float_bits(amax);
    return {u >= 0x7F800000u ? 128 : static_cast<int>(u >> 23) - 135 + ((u & 0x7FFFFFu) > 0x600000u ? 1 : 0)};
  }
  __device__ float inverse() const { return pow2(-exponent); }
  __device__ float value() const { return float_from_bits(exponent > 127 ? 0x7FC00000u : static_cast<uint32_t>(exponent + 127) << 23); }
  __device__ uint8_t byte() const { return static_cast<uint8_t>(exponent + 127); }
};
static_assert(BlockScale::of_e4m3(448.0f).exponent == e4m3_exponent(448.0f) && BlockScale::of_e4m3(448.0001f).exponent == 1 &&
              e4m3_exponent(448.0001f) == 1 && BlockScale::of_e4m3(1e-10f).exponent == e4m3_exponent(1e-10f) &&
              BlockScale::of_e4m3(3.4e38f).exponent == e4m3_exponent(3.4e38f));

__device__ __forceinline__ bool aligned(const void* p, unsigned bytes) { return (reinterpret_cast<uintptr_t>(p) & (bytes - 1)) == 0; }

// Loads kWords consecutive words of one lane. p may have any alignment; 16 bytes (or 4 * kWords, if less) is fast.
template <int kWords>
__device__ __forceinline__ void store_words(uint8_t* p, const uint32_t (&words)[kWords]) {
  static_assert(kWords == 1 || kWords == 2 || kWords % 4 == 0);
  if constexpr (kWords % 4 == 0) {
    if (aligned(p, 16)) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        *reinterpret_cast<uint4*>(p + 4 * i) = make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
      }
      return;
    }
  }
  if constexpr (kWords == 2) {
    if (aligned(p, 8)) {
      *reinterpret_cast<uint2*>(p) = make_uint2(words[0], words[1]);
      return;
    }
  }
  if (aligned(p, 4)) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<uint32_t*>(p)[i] = words[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < 4 * kWords; ++i) p[i] = static_cast<uint8_t>(words[i / 4] >> 8 * (i % 4));
}

// The corresponding store.
template <int kWords>
__device__ __forceinline__ void load_words(const uint8_t* p, uint32_t (&words)[kWords]) {
  static_assert(kWords == 1 || kWords == 2 || kWords % 4 == 0);
  if constexpr (kWords % 4 == 0) {
    if (aligned(p, 16)) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 v = *reinterpret_cast<const uint4*>(p + 4 * i);
        words[i] = v.x;
        words[i + 1] = v.y;
        words[i + 2] = v.z;
        words[i + 3] = v.w;
      }
      return;
    }
  }
  if constexpr (kWords == 2) {
    if (aligned(p, 8)) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      words[0] = v.x;
      words[1] = v.y;
      return;
    }
  }
  if (aligned(p, 4)) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const uint32_t*>(p)[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = 0;
#pragma unroll
  for (int i = 0; i < 4 * kWords; ++i) words[i / 4] |= uint32_t{p[i]} << 8 * (i % 4);
}

// kValues bf16 at any address as fp32.
template <int kValues>
__device__ __forceinline__ void load_bf16(const uint8_t* p, float (&x)[kValues]) {
  uint32_t words[kValues / 2];
  load_words(p, words);
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i) {
    x[2 * i] = bf16_low(words[i]);
    x[2 * i + 1] = bf16_high(words[i]);
  }
}

}  // namespace strata::cuda
