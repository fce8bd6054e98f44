// One of the threads that fill a ring of stages in shared memory by copies.
#pragma once

#include "backends/cuda/linear/sm90/ring_stage.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"

namespace strata::cuda::sm90 {

// Asks for `bytes` of each block: ask(block, the stage that they go to, the barrier that they arrive on), as soon as the stage is empty,
// and for `in_flight` blocks at a time. Barriers of all stages: `there`, of what has arrived, and `empty`, of who has read it.
template <class Ask>
__device__ __forceinline__ void fill_ring(int blocks, int stages, uint32_t bytes, uint32_t there, uint32_t empty, int in_flight,
                                          Ask&& ask) {
  RingStage stage, landed;
#pragma unroll 1
  for (int block = 0; block < blocks; ++block, stage.next(stages)) {
    if (block >= stages) ptx::mbarrier_wait(empty + stage.index * 8, stage.parity ^ 1);
    if (block >= in_flight && in_flight < stages) {
      ptx::mbarrier_wait(there + landed.index * 8, landed.parity);
      landed.next(stages);
    }
    ptx::mbarrier_arrive_expect_tx(there + stage.index * 8, bytes);
    ask(block, stage.index, there + stage.index * 8);
  }
}

}  // namespace strata::cuda::sm90
