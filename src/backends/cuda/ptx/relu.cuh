// A ReLU that propagates NaN. sm_80.
#pragma once

namespace strata::cuda::ptx {

// max(v, 0); NaN for NaN, where fmaxf gives 0.
__device__ __forceinline__ float relu_nan(float v) {
  float result;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(v));
  return result;
}

}  // namespace strata::cuda::ptx
