// Clusters of blocks. sm_90.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// All threads of the cluster arrive; what they wrote before is visible to threads after their wait.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// The address in the cluster's shared memory of the same variable in the block of another rank.
__device__ __forceinline__ uint32_t map_shared(uint32_t shared, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared), "r"(rank));
  return mapped;
}
__device__ __forceinline__ void store_cluster_f32(uint32_t mapped, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(mapped), "f"(v) : "memory");
}

}  // namespace strata::cuda::ptx
