// How warpgroups share a block: registers, barriers among some of its threads, the order of ordinary and asynchronous accesses. sm_90a.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// Gives registers back, or takes them from those given back. All warps of the warpgroup.
template <int kRegisters>
__device__ __forceinline__ void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barrier `id` of `threads` threads, those that only arrive included.
__device__ __forceinline__ void barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Whether any of them has `value`.
__device__ __forceinline__ bool barrier_or(uint32_t id, uint32_t threads, bool value) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred mine, any;\nsetp.ne.b32 mine, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, mine;\nselp.b32 %0, 1, 0, any;\n}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(value))
      : "memory");
  return any != 0;
}
__device__ __forceinline__ void barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// This thread's ordinary shared-memory writes come before asynchronous reads (wgmma) ordered behind it.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace strata::cuda::ptx
