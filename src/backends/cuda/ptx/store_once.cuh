// Stores of data that is not read again soon. sm_80.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// 16 bytes, with an L2 policy (tma.cuh).
__device__ __forceinline__ void st_global(void* p, uint4 v, uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy)
               : "memory");
}

}  // namespace strata::cuda::ptx
