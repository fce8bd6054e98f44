// y = x W^T for many tokens, e4m3 with scales of 1 x 128 and 128 x 128 blocks, y in bf16.
//
// Floor: 2 T N K flops at the machine's FP8 rate: wgmma takes 4096 products a cycle of an SM, the promotion of its sums to scaled fp32 sums
// is one fused multiply-add for 128 products and runs beside the other warpgroup's wgmma.
//
// Design: a block's tile is 256 tokens x 128 features; each of two warpgroups multiplies 128 tokens, 64 at a time, so that the sums (128
// registers) and one product (64) fit. Two blocks of a cluster take neighbouring features: each brings half of the tokens for both
// (multicast), 32 KB a block and 128 channels from L2 for 4 million products. Clusters walk tiles, all tokens of a pair of feature tiles
// first, so that weights come from memory once. The copy engine stores y while the next tile is multiplied.
#pragma once

#include <cuda.h>

#include "backends/cuda/common/pack.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/ptx/wgmma.cuh"
#include "backends/cuda/sm90/linear_many/config.h"

namespace strata::cuda::sm90 {

// The tiles of this block, in order.
struct ManyTiles {
  int rank, tile, token, feature;  // token, feature: of the first
  __device__ explicit ManyTiles(const ManyArgs& a) : rank(static_cast<int>(ptx::cluster_rank())), tile(blockIdx.x / kManyCluster) {
    place(a);
  }
  __device__ bool done(const ManyArgs& a) const { return tile >= a.token_tiles * a.feature_pairs; }
  __device__ void next(const ManyArgs& a) {
    tile += gridDim.x / kManyCluster;
    place(a);
  }

 private:
  __device__ void place(const ManyArgs& a) {
    token = tile % a.token_tiles * kManyTokens;
    feature = (tile / a.token_tiles * kManyCluster + rank) * kManyFeatures;
  }
};

struct ManyStage {
  int index = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++index == kManyStages) {
      index = 0;
      parity ^= 1;
    }
  }
};

// One thread: asks for the operands of all tiles, as both blocks have read what was in a stage before.
__device__ inline void load_operands(const CUtensorMap& x, const CUtensorMap& w, const ManyArgs& a, uint32_t shared, uint32_t full,
                                     uint32_t empty, uint32_t w_scales) {
  constexpr uint16_t kBoth = (1u << kManyCluster) - 1;
  constexpr int kHalf = kManyTokens / kManyCluster;
  ManyStage stage;
  for (ManyTiles tiles(a); !tiles.done(a); tiles.next(a)) {
    const float* const w_scale = a.w_scale + min(tiles.feature, a.num_features - 1) / a.weight_block_rows * a.w_scale_stride;
    for (int block = 0; block < a.num_blocks; ++block, stage.next()) {
      ptx::mbarrier_wait(empty + stage.index * 8, stage.parity ^ 1);
      const uint32_t barrier = full + stage.index * 8, to = shared + stage.index * ManyShared::kStageBytes;
      ptx::mbarrier_arrive_expect_tx(barrier, ManyShared::kStageBytes + ManyShared::kScaleBytes);
      ptx::tma_load_2d_multicast(to + tiles.rank * kHalf * kManyBlock, &x, block * kManyBlock, tiles.token + tiles.rank * kHalf, barrier,
                                 kBoth);
      ptx::tma_load_2d(to + ManyShared::kTokenBytes, &w, block * kManyBlock, tiles.feature, barrier);
      ptx::bulk_load(shared + ManyShared::kScales + stage.index * ManyShared::kScaleBytes,
                     a.x_scale + block * a.x_scale_stride + tiles.token, ManyShared::kScaleBytes, barrier);
      ptx::cp_async_4(w_scales + stage.index * 4, w_scale + block);
      ptx::cp_async_arrive(barrier);
    }
  }
}

// This warpgroup's 128 tokens as bf16 in shared memory, from there to y.
__device__ __forceinline__ void store_tile(const CUtensorMap& y, const float (&sums)[2][64], uint32_t out, int token, int feature) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const uint32_t own_barrier = 1 + threadIdx.x / 128;
  if (thread == 0) ptx::bulk_store_wait_read();  // the tile before has left
  ptx::barrier_sync(own_barrier, 128);
#pragma unroll
  for (int half_of_tokens = 0; half_of_tokens < 2; ++half_of_tokens) {
    const int row = 64 * half_of_tokens + 16 * warp + 8 * (lane / 8 % 2) + lane % 8;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float* const s = sums[half_of_tokens] + 4 * j;
      const int part = (j + lane / 16) % 8;
      ptx::stmatrix_x4(out + j / 8 * (128 * 128) + row * 128 + (part ^ (row % 8)) * 16, pack_bf16(s[0], s[1]), pack_bf16(s[2], s[3]),
                       pack_bf16(s[4], s[5]), pack_bf16(s[6], s[7]));
    }
  }
  ptx::fence_proxy_async();
  ptx::barrier_sync(own_barrier, 128);
  if (thread == 0) {
    ptx::tma_store_2d(&y, out, feature, token);
    ptx::tma_store_2d(&y, out + 128 * 128, feature + 64, token);
    ptx::bulk_store_commit();
  }
}

__device__ __forceinline__ void multiply_tiles(const CUtensorMap& y, const ManyArgs& a, uint8_t* shared, uint32_t full, uint32_t empty,
                                               const float* w_scales) {
  const int warpgroup = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const uint32_t stages = ptx::shared_address(shared);
  ManyStage stage;
  for (ManyTiles tiles(a); !tiles.done(a); tiles.next(a)) {
    float sums[2][64] = {};
    for (int block = 0; block < a.num_blocks; ++block, stage.next()) {
      ptx::mbarrier_wait(full + stage.index * 8, stage.parity);
      const uint32_t operands = stages + stage.index * ManyShared::kStageBytes;
      const uint64_t features = ptx::wgmma_descriptor(operands + ManyShared::kTokenBytes);
      const auto* const x_scales = reinterpret_cast<const float*>(shared + ManyShared::kScales + stage.index * ManyShared::kScaleBytes);
      const float w_scale = w_scales[stage.index];
      float scales[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scales[i / 2][i % 2] = x_scales[128 * warpgroup + 64 * (i / 2) + 16 * warp + lane / 4 + 8 * (i % 2)] * w_scale;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t tokens = ptx::wgmma_descriptor(operands + (128 * warpgroup + 64 * half) * kManyBlock);
        float products[64];
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) ptx::wgmma_e4m3(products, tokens + 2 * i, features + 2 * i, i > 0);  // 32 channels each
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        if (half == 1) __syncwarp();  // all lanes have read their scales
        if (half == 1 && lane < kManyCluster) ptx::mbarrier_arrive_mapped(ptx::map_shared(empty + stage.index * 8, lane));
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[half][i] += scales[half][i / 2 % 2] * products[i];
      }
    }
    store_tile(y, sums, stages + ManyShared::kOut + warpgroup * (128 * kManyFeatures * 2), tiles.token + 128 * warpgroup, tiles.feature);
  }
  if (threadIdx.x % 128 == 0) ptx::bulk_store_wait();
}

__global__ void __cluster_dims__(kManyCluster, 1, 1) __launch_bounds__(kManyThreads, 1)
    many_tokens_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap y,
                       const __grid_constant__ ManyArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t full = ptx::shared_address(shared + ManyShared::kBarriers), empty = full + kManyStages * 8;
  float* const w_scales = reinterpret_cast<float*>(shared + ManyShared::kBarriers + kManyStages * 16);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kManyStages; ++i) {
      ptx::mbarrier_init(full + i * 8, 2);                  // the copies, and that of the weight's scale
      ptx::mbarrier_init(empty + i * 8, 8 * kManyCluster);  // the warps that multiply, of both blocks
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  if (threadIdx.x < 128) {
    ptx::registers_shrink<40>();
    if (threadIdx.x == 0) {
      ptx::prefetch_tensor_map(&x);
      ptx::prefetch_tensor_map(&w);
      ptx::prefetch_tensor_map(&y);
      load_operands(x, w, a, ptx::shared_address(shared), full, empty, ptx::shared_address(w_scales));
    }
  } else {
    ptx::registers_grow<232>();
    multiply_tiles(y, a, shared, full, empty, w_scales);
  }
  // No block leaves while the other still arrives on its barriers.
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace strata::cuda::sm90
