// Barriers in shared memory that warps arrive on, and the build that racecheck can follow.
#pragma once

#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"

namespace strata::cuda {

// racecheck does not see one lane's arrival as ordering the accesses of its warp's other lanes. So in a build for racecheck every lane
// arrives (docs/kernels/race_checks.md).
#ifdef STRATA_CUDA_RACECHECK
inline constexpr bool kForRacecheck = true;
#else
inline constexpr bool kForRacecheck = false;
#endif

// Arrivals that a barrier counts per warp.
inline constexpr uint32_t kWarpArrivals = kForRacecheck ? 32 : 1;
// Whether a lane arrives for its warp, after the warp has synchronised: by __syncwarp, or by wgmma's wait.
__device__ __forceinline__ bool arrives(uint32_t lane) { return kForRacecheck || lane == 0; }

// One warp's arrival, after the accesses of all its lanes.
__device__ __forceinline__ void arrive_warp(const uint64_t& barrier) {
  __syncwarp();
  if (arrives(threadIdx.x % 32)) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
}
// By the barrier's address in shared memory, with the caller's lane index.
__device__ __forceinline__ void arrive_warp(uint32_t barrier, uint32_t lane) {
  __syncwarp();
  if (arrives(lane)) ptx::mbarrier_arrive(barrier);
}
// After the warp has synchronised, on the barrier of each of the cluster's kBlocks CTAs; mapped: its address in CTA lane % kBlocks.
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
