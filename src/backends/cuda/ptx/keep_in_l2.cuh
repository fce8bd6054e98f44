// Priorities of lines in L2. sm_80.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// For data that is read again: evicted last from L2.
__device__ __forceinline__ uint64_t evict_last_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Restores normal priority of the line of this address.
__device__ __forceinline__ void evict_normal(const void* address) {
  const uint64_t line = reinterpret_cast<uint64_t>(address) / 128 * 128;
  asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(line) : "memory");
}

}  // namespace strata::cuda::ptx
