// The copy engine: boxes of a tensor from global to shared memory. sm_90.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// Orders this thread's ordinary writes to shared memory before reads of wgmma and of the copy engine that a barrier puts after it.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// For data that is read once: the first to leave L2.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The box of a 2-D tensor map at (column, row); arrives with its bytes on the barrier.
__device__ __forceinline__ void tma_load_2d(uint32_t shared, const void* tensor_map, int column, int row, uint32_t barrier,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          shared),
      "l"(tensor_map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const void* tensor_map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(tensor_map) : "memory");
}

}  // namespace strata::cuda::ptx
