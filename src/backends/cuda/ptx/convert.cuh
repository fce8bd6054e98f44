// Conversions of two values in one instruction. The first argument is the low half.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// bf16 pair, round to nearest even. NaN loses its sign and payload (0x7FFF). sm_80.
__device__ __forceinline__ uint32_t cvt_bf16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// e4m3 pair, round to nearest even, infinities and values past 448 become 448. NaN loses its sign (0x7F). sm_89.
__device__ __forceinline__ uint16_t cvt_e4m3x2(float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}

// e4m3 pair to fp16 pair, exact. sm_89.
__device__ __forceinline__ uint32_t cvt_f16x2_e4m3x2(uint16_t quantized) {
  uint32_t packed;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(packed) : "h"(quantized));
  return packed;
}

// Four e4m3 values to two fp16 pairs, exact: one instruction per pair. Both halves of the register are named in one asm statement, because
// a shift in C++ would remain an extra instruction. sm_89.
__device__ __forceinline__ uint2 cvt_f16x4_e4m3x4(uint32_t quantized) {
  uint2 pairs;
  asm("{\n.reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(pairs.x), "=r"(pairs.y)
      : "r"(quantized));
  return pairs;
}

// fp16 pair, round to nearest even; past 65504 infinity. sm_80.
__device__ __forceinline__ uint32_t cvt_f16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace strata::cuda::ptx
