// Products of a single warp (mma.sync), for few heads. Operand B, of eight columns, is two registers per step, which every warp reads from
// where wgmma would. No proxy fence is needed, and no warp waits for three others.
#pragma once

#include "backends/cuda/ptx/ldmatrix.cuh"
#include "backends/cuda/ptx/mma_bf16.cuh"
#include "backends/cuda/ptx/mma_f16.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/epilogue.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Four steps of 16 contracted dimensions or rows, for kHeadTiles times eight heads.
template <int kHeadTiles>
struct OfHeads {
  uint32_t of_steps[kHeadTiles][2][4];

  // `address`: shared-memory address of 64 contracted elements of each head, swizzled by 128 bytes.
  __device__ __forceinline__ void load(uint32_t address, int lane) {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i) ptx::ldmatrix_x4(of_steps[h][i], address + unit_offset(8 * h + lane % 8, 4 * i + lane / 8));
    }
  }
  template <bool kBf16 = false>
  __device__ __forceinline__ void add_product(float (&sums)[4 * kHeadTiles], const uint32_t (&a)[4], int step) const {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      auto& of_eight = reinterpret_cast<float(&)[4]>(sums[4 * h]);
      const uint32_t(&two_steps)[4] = of_steps[h][step / 2];
      const uint32_t low = two_steps[step % 2 * 2], high = two_steps[step % 2 * 2 + 1];
      if constexpr (kBf16) {
        ptx::mma_m16n8k16_bf16(of_eight, a, low, high);
      } else {
        ptx::mma_m16n8k16_f16(of_eight, a, low, high);
      }
    }
  }
};

}  // namespace strata::cuda::sparse_decode::few_heads
