// A predicated load of four floats.
#pragma once

namespace strata::cuda::ptx {

// Aligned to 16 bytes; each `otherwise` when not wanted. One instruction, where a branch around it would be one for each load in flight.
__device__ __forceinline__ float4 load_quad_if(bool wanted, const float* p, float otherwise) {
  float4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.f32 %0, %6;\nmov.f32 %1, %6;\nmov.f32 %2, %6;\nmov.f32 %3, %6;\n"
      "@p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w)
      : "l"(p), "r"(static_cast<int>(wanted)), "f"(otherwise)
      : "memory");
  return v;
}

}  // namespace strata::cuda::ptx
