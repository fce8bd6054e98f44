// Copies of contiguous bytes by the copy engine. sm_90.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// `bytes` from global to shared memory, all three multiples of 16; arrives with its bytes on the barrier.
__device__ __forceinline__ void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared), "l"(global),
               "r"(bytes), "r"(barrier)
               : "memory");
}

}  // namespace strata::cuda::ptx
