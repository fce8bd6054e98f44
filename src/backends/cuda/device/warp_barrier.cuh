// Barriers in shared memory that warps arrive on, and the build that racecheck can follow.
#pragma once

#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"

namespace strata::cuda {

// racecheck does not take one lane's arrival for an order of what the other lanes of its warp did, so in a build for it every lane arrives
// (docs/kernels/20261121-race-checks.md).
#ifdef STRATA_CUDA_RACECHECK
inline constexpr bool kForRacecheck = true;
#else
inline constexpr bool kForRacecheck = false;
#endif

// What a barrier counts for a warp.
inline constexpr uint32_t kWarpArrivals = kForRacecheck ? 32 : 1;
// Whether a lane arrives for its warp, whose lanes have come together behind what they did: at __syncwarp, or at wgmma's wait.
__device__ __forceinline__ bool arrives(uint32_t lane) { return kForRacecheck || lane == 0; }

// One warp's arrival, behind what all its lanes did.
__device__ __forceinline__ void arrive_warp(const uint64_t& barrier) {
  __syncwarp();
  if (arrives(threadIdx.x % 32)) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
}
// By the barrier's address in shared memory, and the lane as the caller has it.
__device__ __forceinline__ void arrive_warp(uint32_t barrier, uint32_t lane) {
  __syncwarp();
  if (arrives(lane)) ptx::mbarrier_arrive(barrier);
}
// Lanes having come together, on the barrier of each of the cluster's kBlocks blocks; mapped: its address in block lane % kBlocks.
template <int kBlocks>
__device__ __forceinline__ void arrive_in_cluster(uint32_t barrier, uint32_t mapped, int lane) {
  if constexpr (kForRacecheck) {
    for (int rank = 0; rank < kBlocks; ++rank) ptx::mbarrier_arrive_mapped(ptx::map_shared(barrier, rank));
  } else {
    if (lane < kBlocks) ptx::mbarrier_arrive_mapped(mapped);
  }
}
__device__ __forceinline__ void wait(const uint64_t& barrier, uint32_t parity) {
  ptx::mbarrier_wait(ptx::shared_address(&barrier), parity);
}

}  // namespace strata::cuda
