// Lines that stay in L2 while others leave. sm_80.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// For data that is read again: the last to leave L2.
__device__ __forceinline__ uint64_t evict_last_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The line of this address leaves like any other again.
__device__ __forceinline__ void evict_as_others(const void* address) {
  const uint64_t line = reinterpret_cast<uint64_t>(address) / 128 * 128;
  asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(line) : "memory");
}

}  // namespace strata::cuda::ptx
