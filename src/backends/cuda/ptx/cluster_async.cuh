// Stores to the shared memory of other CTAs of a cluster that arrive on a barrier there. sm_90.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// Stores 4 bytes. Both addresses are cluster addresses (map_shared) of the same CTA; the 4 bytes arrive on the barrier.
__device__ __forceinline__ void store_async_f32(uint32_t mapped, float v, uint32_t mapped_barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(mapped), "f"(v), "r"(mapped_barrier)
               : "memory");
}
// Stores 8 bytes, which arrive on the barrier.
__device__ __forceinline__ void store_async_f32x2(uint32_t mapped, float a, float b, uint32_t mapped_barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(mapped), "f"(a), "f"(b),
               "r"(mapped_barrier)
               : "memory");
}
// Stores 16 bytes, aligned to 16, which arrive on the barrier.
__device__ __forceinline__ void store_async(uint32_t mapped, uint4 v, uint32_t mapped_barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(mapped), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w), "r"(mapped_barrier)
               : "memory");
}

}  // namespace strata::cuda::ptx
