// Places behind what a wgmma descriptor describes.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

// What is so many times 16 bytes behind it: an addition to the lower half alone, without a carry to the upper one, which the products of a
// tile wait for.
__device__ __forceinline__ uint64_t behind(uint64_t descriptor, uint32_t places) {
  return (descriptor & ~uint64_t{0xFFFFFFFF}) | (static_cast<uint32_t>(descriptor) + places);
}

}  // namespace strata::cuda::ptx
