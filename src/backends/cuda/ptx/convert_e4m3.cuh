// e4m3 codes to fp16, beside convert.cuh. sm_89.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// Four codes as two fp16 pairs, exact: one instruction a pair. Both halves of the register are named in one place, as a shift in C++ would
// stay an instruction of its own.
__device__ __forceinline__ uint2 cvt_f16x2_e4m3x4(uint32_t codes) {
  uint2 pairs;
  asm("{\n.reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(pairs.x), "=r"(pairs.y)
      : "r"(codes));
  return pairs;
}

}  // namespace strata::cuda::ptx
