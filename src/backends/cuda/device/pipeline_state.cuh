// A ring of stages in shared memory.
#pragma once

#include <cstdint>

namespace strata::cuda {

// A position in a ring, and the parity of its phase.
template <int kStages>
struct PipelineState {
  uint32_t index = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++index == kStages) {
      index = 0;
      parity ^= 1;
    }
  }
};

}  // namespace strata::cuda
