// Clusters of CTAs. sm_90.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of the cluster arrive; their earlier writes are visible to threads after their wait.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
// Without ordering writes: for threads that have written nothing the others read, except barriers that fence_mbarrier_init() makes visible.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
// Waits for the arrival of all threads of the cluster that have not exited.
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// The address in the cluster's shared memory of the same variable in the CTA of another rank.
__device__ __forceinline__ uint32_t map_shared(uint32_t shared, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared), "r"(rank));
  return mapped;
}

__device__ __forceinline__ float load_cluster_f32(uint32_t mapped) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(mapped) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_cluster_f32x4(uint32_t mapped) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(mapped) : "memory");
  return v;
}

__device__ __forceinline__ uint4 load_cluster(uint32_t mapped) {
  uint4 v;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(mapped) : "memory");
  return v;
}

// Returns when the phase of this parity of the CTA's own barrier is complete, and acquires what CTAs of the cluster released with it.
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// One arrival on a barrier at a cluster address, by a thread that has read, not written: it orders nothing for the other CTA.
__device__ __forceinline__ void mbarrier_arrive_mapped(uint32_t mapped) {
  asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}

}  // namespace strata::cuda::ptx
