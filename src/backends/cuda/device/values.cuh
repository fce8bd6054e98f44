// Moves a lane's run of values between tensors and fp32 registers. kWide: the run is 16-byte aligned and moves in units of 16 bytes (8 for
// e4m3); otherwise element by element, at the element's alignment.
#pragma once

#include "backends/cuda/device/pack.cuh"
#include "formats/rope.h"

namespace strata::cuda {

template <bool kWide, int kValues>
__device__ __forceinline__ void load_values(const Bf16* p, float (&x)[kValues]) {
  if constexpr (kWide) {
    static_assert(kValues % 8 == 0);
#pragma unroll
    for (int i = 0; i < kValues; i += 8) {
      float run[8];
      unpack_bf16(*reinterpret_cast<const uint4*>(p + i), run);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[i + j] = run[j];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kValues; ++i) x[i] = to_float(p[i]);
  }
}

template <bool kWide, int kValues>
__device__ __forceinline__ void load_values(const float* p, float (&x)[kValues]) {
  if constexpr (kWide) {
    static_assert(kValues % 4 == 0);
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(p + i);
      x[i] = v.x;
      x[i + 1] = v.y;
      x[i + 2] = v.z;
      x[i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kValues; ++i) x[i] = p[i];
  }
}

template <bool kWide, int kValues>
__device__ __forceinline__ void store_values(Bf16* p, const float (&x)[kValues]) {
  if constexpr (kWide) {
    static_assert(kValues % 8 == 0);
#pragma unroll
    for (int i = 0; i < kValues; i += 8) {
      *reinterpret_cast<uint4*>(p + i) = make_uint4(ptx::cvt_bf16x2(x[i], x[i + 1]), ptx::cvt_bf16x2(x[i + 2], x[i + 3]),
                                                    ptx::cvt_bf16x2(x[i + 4], x[i + 5]), ptx::cvt_bf16x2(x[i + 6], x[i + 7]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kValues; ++i) p[i] = to_bf16(x[i]);
  }
}

// Stores f(x[i]) as e4m3; f scales.
template <bool kWide, int kValues, class F>
__device__ __forceinline__ void store_quantized(E4m3* p, const float (&x)[kValues], F f) {
  if constexpr (kWide) {
    static_assert(kValues % 8 == 0);
#pragma unroll
    for (int i = 0; i < kValues; i += 8) *reinterpret_cast<uint2*>(p + i) = make_uint2(pack_e4m3(x + i, f), pack_e4m3(x + i + 4, f));
  } else {
#pragma unroll
    for (int i = 0; i < kValues; ++i) p[i] = to_e4m3(x[i] != x[i] ? x[i] : f(x[i]));
  }
}

// Values that nothing writes while the kernel runs (weights, tables): the compiler may read them before it stores something else.
template <bool kWide, int kValues>
__device__ __forceinline__ void load_constants(const float* p, float (&x)[kValues]) {
  if constexpr (kWide) {
    static_assert(kValues % 4 == 0);
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      const float4 v = __ldg(reinterpret_cast<const float4*>(p + i));
      x[i] = v.x;
      x[i + 1] = v.y;
      x[i + 2] = v.z;
      x[i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kValues; ++i) x[i] = __ldg(p + i);
  }
}

// The angles of the rotary dimensions [lane, lane + kValues) of R: kValues / 2 cosines, then as many sines. `row`: a row of the table.
template <bool kWide, int kValues>
__device__ __forceinline__ void load_angles(const float* row, int rotary, int lane, float (&angles)[kValues]) {
  constexpr int kPairs = kValues / 2;
  float half[kPairs];
  load_constants<kWide>(row + lane / 2, half);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) angles[i] = half[i];
  load_constants<kWide>(row + rotary / 2 + lane / 2, half);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) angles[kPairs + i] = half[i];
}

// Rotates interleaved pairs, as rotate_pair() does. The order of rounding is explicit and not left to the compiler, so that all kernels
// make the same bits of the same values.
template <int kValues>
__device__ __forceinline__ void rotate_values(float (&x)[kValues], const float (&angles)[kValues], bool inverse = false) {
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i) {
    const float c = angles[i], s = inverse ? -angles[kValues / 2 + i] : angles[kValues / 2 + i];
    const float first = x[2 * i], second = x[2 * i + 1];
    x[2 * i] = __fmaf_rn(first, c, -__fmul_rn(second, s));
    x[2 * i + 1] = __fmaf_rn(second, c, __fmul_rn(first, s));
  }
}

}  // namespace strata::cuda
