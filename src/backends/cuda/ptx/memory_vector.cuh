// Loads of several words at a time that L1 may keep. Not .nc: what they read may be written by a kernel in front that still ran when this
// one's began, and only coherent loads are promised to see that behind the wait for it.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// Aligned to 8 bytes; each word `otherwise` when not wanted. One predicated instruction, as those of memory.cuh.
__device__ __forceinline__ uint2 ld_pair_if(bool wanted, const void* p, uint32_t otherwise) {
  uint2 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %3, 0;\n"
      "mov.b32 %0, %4;\nmov.b32 %1, %4;\n"
      "@p ld.global.v2.u32 {%0, %1}, [%2];\n}"
      : "=&r"(v.x), "=&r"(v.y)
      : "l"(p), "r"(static_cast<int>(wanted)), "r"(otherwise));
  return v;
}
// Four words, aligned to 16 bytes; zero when not wanted.
__device__ __forceinline__ uint4 ld_quad_if(bool wanted, const void* p) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"(static_cast<int>(wanted)));
  return v;
}

}  // namespace strata::cuda::ptx
