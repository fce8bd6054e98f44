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
__device__ __forceinline__ void barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// This thread's ordinary shared-memory writes come before asynchronous reads (wgmma) ordered behind it.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace strata::cuda::ptx
