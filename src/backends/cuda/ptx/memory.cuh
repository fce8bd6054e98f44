// Loads and stores that C++ cannot express.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// Predicated loads are one instruction. A branch around the load would make the compiler wait for loads in flight where both paths merge.
// None is .nc, which requires that the data is not written while the kernel runs: a kernel that starts early (early_launch.cuh) runs while
// the preceding kernel still writes. ptxas also keeps ordinary loads between the barriers where they are written.

// 16-byte aligned; zero unless pred.
__device__ __forceinline__ uint4 ld_quad_if(bool pred, const void* p) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"(static_cast<int>(pred))
      : "memory");
  return v;
}
// The same for data that this CTA reads once: not kept in L1. sm_80.
__device__ __forceinline__ uint4 ld_once_if(bool pred, const void* p) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"(static_cast<int>(pred))
      : "memory");
  return v;
}
// 8-byte aligned; each word is `otherwise` unless pred.
__device__ __forceinline__ uint2 ld_pair_if(bool pred, const void* p, uint32_t otherwise) {
  uint2 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %3, 0;\n"
      "mov.b32 %0, %4;\nmov.b32 %1, %4;\n"
      "@p ld.global.v2.u32 {%0, %1}, [%2];\n}"
      : "=&r"(v.x), "=&r"(v.y)
      : "l"(p), "r"(static_cast<int>(pred)), "r"(otherwise)
      : "memory");
  return v;
}
// Four bytes.
__device__ __forceinline__ uint32_t ld_if(bool pred, const void* p, uint32_t otherwise) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "mov.b32 %0, %3;\n"
      "@p ld.global.u32 %0, [%1];\n}"
      : "=&r"(v)
      : "l"(p), "r"(static_cast<int>(pred)), "r"(otherwise)
      : "memory");
  return v;
}
// Four floats, 16-byte aligned; each `otherwise` unless pred.
__device__ __forceinline__ float4 load_quad_if(bool pred, const float* p, float otherwise) {
  float4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.f32 %0, %6;\nmov.f32 %1, %6;\nmov.f32 %2, %6;\nmov.f32 %3, %6;\n"
      "@p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w)
      : "l"(p), "r"(static_cast<int>(pred)), "f"(otherwise)
      : "memory");
  return v;
}

// Four bytes with their present value in L2, whatever L1 holds; `otherwise` unless pred.
__device__ __forceinline__ uint32_t ld_current_if(bool pred, const void* p, uint32_t otherwise) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "mov.b32 %0, %3;\n"
      "@p ld.relaxed.gpu.global.u32 %0, [%1];\n}"
      : "=&r"(v)
      : "l"(p), "r"(static_cast<int>(pred)), "r"(otherwise));
  return v;
}

// Prefetch hint: the line of this address to L2.
__device__ __forceinline__ void prefetch_l2_if(bool pred, const void* p) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p prefetch.global.L2 [%0];\n}" ::"l"(p), "r"(static_cast<int>(pred)));
}

// Stores to global memory, 16-byte aligned.
__device__ __forceinline__ void st_global(void* p, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void st_shared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ uint4 ld_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ float ld_shared_f32(uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}

// Four 8x8 tiles of 16-bit elements in mma's accumulator layout: lanes 8i .. 8i + 7 give the addresses of the eight 16-byte rows of
// tile i. sm_90.
__device__ __forceinline__ void stmatrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
// The same tiles transposed: the rows that are stored are columns of the accumulators.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace strata::cuda::ptx
