// Run by one of the threads that fill a ring of stages in shared memory by copies.
#pragma once

#include "backends/cuda/linear/sm90/ring_stage.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"

namespace strata::cuda::sm90 {

// Issues the copies of all blocks: issue(block, stage, barrier on which the copy arrives) as soon as the stage is empty, with `bytes` bytes
// each and at most `in_flight` blocks in flight. Barriers of all stages: `there` for arrived copies, and `empty` for readers.
template <class Issue>
__device__ __forceinline__ void fill_ring(int blocks, int stages, uint32_t bytes, uint32_t there, uint32_t empty, int in_flight,
                                          Issue&& issue) {
  RingStage stage, landed;
#pragma unroll 1
  for (int block = 0; block < blocks; ++block, stage.next(stages)) {
    if (block >= stages) ptx::mbarrier_wait(empty + stage.index * 8, stage.parity ^ 1);
    if (block >= in_flight && in_flight < stages) {
      ptx::mbarrier_wait(there + landed.index * 8, landed.parity);
      landed.next(stages);
    }
    ptx::mbarrier_arrive_expect_tx(there + stage.index * 8, bytes);
    issue(block, stage.index, there + stage.index * 8);
  }
}

}  // namespace strata::cuda::sm90
