// A ring of stages in shared memory.
#pragma once

#include <cstdint>

namespace strata::cuda {

// A place in a ring, and the parity of its turn.
template <int kPlaces>
struct Turn {
  uint32_t index = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++index == kPlaces) {
      index = 0;
      parity ^= 1;
    }
  }
};

}  // namespace strata::cuda
