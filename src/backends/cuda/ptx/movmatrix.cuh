// Matrices of 8 x 8 16-bit values in the registers of a warp: lane l has two neighbours of row l / 4, columns 2 (l % 4) and on. sm_80.
#pragma once

#include <cstdint>

namespace strata::cuda::ptx {

__device__ __forceinline__ uint32_t transpose_8x8(uint32_t v) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(v));
  return result;
}

}  // namespace strata::cuda::ptx
