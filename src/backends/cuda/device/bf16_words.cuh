// Words of two bf16 values, quantised without unpacking: magnitudes are compared and scaled two at a time.
#pragma once

#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"

namespace strata::cuda {

template <int kWords>
__device__ __forceinline__ void unpack_words(const uint32_t (&words)[kWords], float (&x)[2 * kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    x[2 * i] = bf16_low(words[i]);
    x[2 * i + 1] = bf16_high(words[i]);
  }
}
// Results of arithmetic, whose NaNs have no sign to keep.
template <int kWords>
__device__ __forceinline__ void pack_words(const float (&x)[2 * kWords], uint32_t (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = ptx::cvt_bf16x2(x[2 * i], x[2 * i + 1]);
}

// Magnitude bits from here on are those of infinity or NaN.
inline constexpr uint32_t kBf16Infinity = 0x7F80;

// The largest magnitude of the values of kLanes neighbouring lanes, as bf16 bits: kBf16Infinity or more if one is not finite.
template <int kLanes, int kWords>
__device__ __forceinline__ uint32_t amax_bits(const uint32_t (&words)[kWords]) {
  constexpr uint32_t kMagnitudes = 0x7FFF7FFF;
  uint32_t most = words[0] & kMagnitudes;
#pragma unroll
  for (int i = 1; i < kWords; ++i) most = ptx::max_nan_bf16x2(most, words[i] & kMagnitudes);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) most = ptx::max_nan_bf16x2(most, __shfl_xor_sync(kAllLanes, most, step));
  return max(most & 0xFFFFu, most >> 16);
}

// Quantises four scaled values to e4m3. The conversion drops the sign of a NaN, so it is taken from `original`.
__device__ __forceinline__ uint32_t e4m3_word(const uint32_t (&scaled)[2], const uint32_t (&original)[2]) {
#if __CUDA_ARCH__ >= 890
  const uint32_t quantized = ptx::cvt_e4m3x2(bf16_low(scaled[0]), bf16_high(scaled[0])) |
                             uint32_t{ptx::cvt_e4m3x2(bf16_low(scaled[1]), bf16_high(scaled[1]))} << 16;
  return quantized | (__byte_perm(original[0], original[1], 0x7531) & 0x80808080u);
#else
  (void)original;
  return pack_e4m3(bf16_low(scaled[0]), bf16_high(scaled[0]), bf16_low(scaled[1]), bf16_high(scaled[1]));
#endif
}

// Quantises four finite values to e4m3; magnitudes above 448 become 448.
__device__ __forceinline__ uint32_t pack_finite_e4m3(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  return ptx::cvt_e4m3x2(a, b) | uint32_t{ptx::cvt_e4m3x2(c, d)} << 16;
#else
  return pack_e4m3(a, b, c, d);
#endif
}

// Finite values times 2^-exponent as e4m3. Only what is below the smallest e4m3 value is lost.
template <int kWords>
__device__ __forceinline__ void quantize_e4m3(const uint32_t (&words)[kWords], BlockScale scale, uint32_t (&quantized)[kWords / 2]) {
  const uint32_t factor = float_bits(scale.inverse()) >> 16;
#pragma unroll
  for (int i = 0; i < kWords / 2; ++i) {
    const uint32_t low = ptx::mul_bf16x2(words[2 * i], factor * 0x10001u), high = ptx::mul_bf16x2(words[2 * i + 1], factor * 0x10001u);
    quantized[i] = pack_finite_e4m3(bf16_low(low), bf16_high(low), bf16_low(high), bf16_high(high));
  }
}

}  // namespace strata::cuda
