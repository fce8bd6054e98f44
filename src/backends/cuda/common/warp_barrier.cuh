// Barriers in shared memory that warps arrive on.
#pragma once

#include "backends/cuda/ptx/mbarrier.cuh"

namespace strata::cuda {

// One arrival a warp, behind what all its lanes did.
__device__ __forceinline__ void arrive_warp(const uint64_t& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
}
__device__ __forceinline__ void wait(const uint64_t& barrier, uint32_t parity) {
  ptx::mbarrier_wait(ptx::shared_address(&barrier), parity);
}

}  // namespace strata::cuda
