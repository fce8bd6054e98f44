// A ring of stages in shared memory.
#pragma once

#include <cstdint>

namespace strata::cuda::sm90 {

// Where somebody is in the ring, and the parity of that turn. Who takes every `step`-th stage needs a ring of a multiple of them: a barrier
// tells a turn only from the one before.
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
