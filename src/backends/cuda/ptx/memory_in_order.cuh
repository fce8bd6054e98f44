// Loads that stay where they are written: behind the latest barrier of the warp (__syncwarp) and in front of the next one, where ptxas
// moves those of read-only data towards their use. Predicated; a branch would make loads in flight wait for each other.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// Aligned to 16 bytes; zero when not wanted.
__device__ __forceinline__ uint4 ld_in_order_if(bool wanted, const void* p) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"(static_cast<int>(wanted))
      : "memory");
  return v;
}
// Four bytes; `otherwise` when not wanted.
__device__ __forceinline__ uint32_t ld_in_order_if(bool wanted, const void* p, uint32_t otherwise) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "mov.b32 %0, %3;\n"
      "@p ld.global.u32 %0, [%1];\n}"
      : "=&r"(v)
      : "l"(p), "r"(static_cast<int>(wanted)), "r"(otherwise)
      : "memory");
  return v;
}
__device__ __forceinline__ void prefetch_l2_if(bool wanted, const void* p) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p prefetch.global.L2 [%0];\n}" ::"l"(p), "r"(static_cast<int>(wanted)));
}

}  // namespace strata::cuda::ptx
