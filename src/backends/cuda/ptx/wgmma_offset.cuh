// Offsets of wgmma descriptors.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// A descriptor whose address is `units` * 16 bytes higher. Only the lower half changes, without a carry into the upper half: the products
// of a tile wait for this addition.
__device__ __forceinline__ uint64_t offset(uint64_t descriptor, uint32_t units) {
  return (descriptor & ~uint64_t{0xFFFFFFFF}) | (static_cast<uint32_t>(descriptor) + units);
}

}  // namespace strata::cuda::ptx
