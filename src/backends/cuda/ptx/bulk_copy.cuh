// TMA copies of contiguous bytes, and prefetches to L2. sm_90.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// Prefetch hint: the line of this address to L2.
__device__ __forceinline__ void prefetch_l2(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }
// The same for `bytes` bytes; address and size are multiples of 16.
__device__ __forceinline__ void bulk_prefetch_l2(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// Copies `bytes` from global to shared memory, all three multiples of 16; the bytes arrive on the barrier.
__device__ __forceinline__ void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared), "l"(global),
               "r"(bytes), "r"(barrier)
               : "memory");
}

// With an L2 policy (tma.cuh).
__device__ __forceinline__ void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
               : "memory");
}

}  // namespace strata::cuda::ptx
