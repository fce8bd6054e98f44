// A ring of stages in shared memory.
#pragma once

#include <cstdint>

namespace strata::cuda::sm90 {

// A position in the ring, with the parity of its phase. If only every `step`-th stage is used, the ring must have a multiple of `step`
// stages: a barrier distinguishes a phase only from the one before.
struct RingStage {
  int index = 0;
  uint32_t parity = 0;

  __device__ void next(int stages, int step = 1) {
    index += step;
    if (index >= stages) {
      index -= stages;
      parity ^= 1;
    }
  }
};

}  // namespace strata::cuda::sm90
