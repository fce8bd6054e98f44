// y = x W^T for many tokens, e4m3 with scales of 1 x 128 and 128 x 128 blocks, y in bf16.
//
// Floor: 2 T N K flops at the machine's FP8 rate: wgmma takes 4096 products a cycle of an SM, 1024 cycles for a tile's block of 128
// channels. Reached: about 1330 (docs/kernels/20261121-many-token-linear.md).
//
// Design: a block's tile is 128 tokens x 256 features; each of two warpgroups multiplies 64 tokens by 128 features at a time, so that the
// sums (128 registers) and one product (64) fit. A product is scaled into the sums, one fused multiply-add a value, while the other
// warpgroup's wgmma runs. Two blocks of a cluster take neighbouring tokens: each brings half of the features for both (multicast), 32 KB a
// block and 128 channels from L2 for 4 million products. Clusters walk bands of feature tiles, so that what all of them read at a time is
// about square. The copy engine stores y while the next tile is multiplied. Features come in groups with channels and columns of their own
// (grouped_linear).
#pragma once

#include <cuda.h>

#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/convert.cuh"
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
  int tile;
  __device__ ManyTiles() : tile(blockIdx.x / kManyCluster) {}
  __device__ bool done(const ManyArgs& a) const { return tile >= a.token_pairs * a.feature_tiles; }
  __device__ void next() { tile += gridDim.x / kManyCluster; }
};

// Where a tile begins.
struct ManyPlace {
  int token, group, feature;  // feature: of the group
  __device__ ManyPlace(const ManyArgs& a, int tile) {
    const int of_band = kManyBand * a.token_pairs, band = tile / of_band, in_band = tile - band * of_band;
    const int width = min(kManyBand, a.feature_tiles - band * kManyBand), pair = in_band / width;
    token = (pair * kManyCluster + static_cast<int>(ptx::cluster_rank())) * kManyTokens;
    const int feature_tile = band * kManyBand + in_band - pair * width;
    group = feature_tile / a.group_tiles;
    feature = (feature_tile - group * a.group_tiles) * kManyFeatures;
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

// One thread: asks for the operands of all tiles, as both blocks have read what was in a stage before. Pointers walk: between an empty
// stage and its copies nothing is computed.
__device__ inline void load_operands(const CUtensorMap& x, const CUtensorMap& w, const ManyArgs& a, uint32_t shared, uint32_t full,
                                     uint32_t empty) {
  constexpr uint16_t kBoth = (1u << kManyCluster) - 1;
  constexpr int kHalf = kManyFeatures / kManyCluster;
  const int first = static_cast<int>(ptx::cluster_rank()) * kHalf;
  ManyStage stage;
  for (ManyTiles tiles; !tiles.done(a); tiles.next()) {
    const ManyPlace place(a, tiles.tile);
    const int first_row = place.group * a.num_features, first_channel = place.group * a.x_group_stride;
    const float* x_scale = a.x_scale + int64_t{place.group} * a.num_blocks * a.x_scale_stride + place.token;
    const auto weight_scale = [&](int feature) {
      return a.w_scale + (first_row + min(feature, a.num_features - 1)) / a.weight_block_rows * a.w_scale_stride;
    };
    const float *left = weight_scale(place.feature), *right = weight_scale(place.feature + kManyFeatures / 2);
#pragma unroll 1
    for (int channel = 0; channel < a.num_blocks * kManyBlock; channel += kManyBlock) {
      const uint32_t barrier = full + stage.index * 8, to = shared + stage.index * ManyShared::kStageBytes;
      ptx::mbarrier_wait(empty + stage.index * 8, stage.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(barrier, ManyShared::kStageBytes + ManyShared::kScaleBytes);
      ptx::tma_load_2d_multicast(to + ManyShared::kTokenBytes + first * kManyBlock, &w, channel, first_row + place.feature + first, barrier,
                                 kBoth);
      ptx::tma_load_2d(to, &x, first_channel + channel, place.token, barrier);
      ptx::bulk_load(shared + ManyShared::kScales + stage.index * ManyShared::kScaleBytes, x_scale, ManyShared::kScaleBytes, barrier);
      ptx::cp_async_4(shared + ManyShared::kWeightScales + stage.index * 8, left++);
      ptx::cp_async_4(shared + ManyShared::kWeightScales + stage.index * 8 + 4, right++);
      ptx::cp_async_arrive(barrier);
      x_scale += a.x_scale_stride;
      stage.next();
    }
  }
}

// This warp's 16 tokens as bf16 in shared memory, from there to so many columns of y, rounded up to 64.
__device__ __forceinline__ void store_tile(const CUtensorMap& y, const float (&sums)[2][64], uint32_t out, int token, int column,
                                           int columns) {
  constexpr int kPart = 16 * 128;  // bytes of 64 features
  const int lane = threadIdx.x % 32, row = lane % 16;
  if (lane == 0) ptx::bulk_store_wait_read();  // the tile before has left
  __syncwarp();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float* const s = sums[half] + 4 * j;
      const int part = (j + lane / 16) % 8;
      ptx::stmatrix_x4(out + (2 * half + j / 8) * kPart + row * 128 + (part ^ (row % 8)) * 16, ptx::cvt_bf16x2(s[0], s[1]),
                       ptx::cvt_bf16x2(s[2], s[3]), ptx::cvt_bf16x2(s[4], s[5]), ptx::cvt_bf16x2(s[6], s[7]));
    }
  }
  ptx::fence_proxy_async();
  __syncwarp();
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (64 * i < columns) ptx::tma_store_2d(&y, out + i * kPart, column + 64 * i, token);
    }
    ptx::bulk_store_commit();
  }
}

// What products are multiplied by: of this thread's tokens, rows l / 4 and 8 more of the warp, and of each half of the features.
__device__ __forceinline__ void read_scales(uint32_t of_tokens, uint32_t of_features, float (&to)[2][2]) {
  const float first = ptx::ld_shared_f32(of_tokens), second = ptx::ld_shared_f32(of_tokens + 32);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float weight = ptx::ld_shared_f32(of_features + half * 4);
    to[half][0] = first * weight, to[half][1] = second * weight;
  }
}

// Between two products of a warpgroup only its sums are added to; what can be done while a product runs is done there.
__device__ __forceinline__ void multiply_tiles(const CUtensorMap& y, const ManyArgs& a, uint32_t shared, uint32_t full, uint32_t empty) {
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0) - 4, lane = threadIdx.x % 32;
  const uint32_t arrive_at = ptx::map_shared(empty, lane % kManyCluster);
  const uint32_t token_scales = shared + ManyShared::kScales + (16 * warp + lane / 4) * 4;
  const uint64_t first_tokens = ptx::wgmma_descriptor(shared + warp / 4 * (64 * kManyBlock));
  const uint64_t first_features = ptx::wgmma_descriptor(shared + ManyShared::kTokenBytes);
  ManyStage stage;
  bool ready = false;  // the present stage is known to be full
  uint64_t tokens = first_tokens, features = first_features;
  for (ManyTiles tiles; !tiles.done(a); tiles.next()) {
    float sums[2][64] = {};
    for (int block = 0; block < a.num_blocks; ++block) {
      if (!ready) ptx::mbarrier_wait(full + stage.index * 8, stage.parity);
      float scales[2][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float products[64];
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i)  // 32 channels each
          ptx::wgmma_e4m3(products, tokens + 2 * i, features + half * (128 * kManyBlock / 16) + 2 * i, i > 0);
        ptx::wgmma_commit();
        if (half == 0) {
          read_scales(token_scales + stage.index * ManyShared::kScaleBytes, shared + ManyShared::kWeightScales + stage.index * 8, scales);
        }
        ptx::wgmma_wait<0>();
        if (half == 1) {
          if (lane < kManyCluster) ptx::mbarrier_arrive_mapped(arrive_at + stage.index * 8);
          stage.next();
          ready = ptx::mbarrier_test(full + stage.index * 8, stage.parity);
          tokens = first_tokens + stage.index * (ManyShared::kStageBytes / 16);
          features = first_features + stage.index * (ManyShared::kStageBytes / 16);
        }
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[half][i] += scales[half][i / 2 % 2] * products[i];
      }
    }
    const ManyPlace place(a, tiles.tile);
    store_tile(y, sums, shared + ManyShared::kOut + warp * (16 * kManyFeatures * 2), place.token + 16 * warp,
               place.group * a.y_group_stride + place.feature, a.num_features - place.feature);
  }
  if (lane == 0) ptx::bulk_store_wait();
}

__global__ void __cluster_dims__(kManyCluster, 1, 1) __launch_bounds__(kManyThreads, 1)
    many_tokens_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap y,
                       const __grid_constant__ ManyArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t full = ptx::shared_address(shared + ManyShared::kBarriers), empty = full + kManyStages * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kManyStages; ++i) {
      ptx::mbarrier_init(full + i * 8, 2);                  // the copies, and those of the weights' scales
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
      load_operands(x, w, a, ptx::shared_address(shared), full, empty);
    }
  } else {
    ptx::registers_grow<232>();
    multiply_tiles(y, a, ptx::shared_address(shared), full, empty);
  }
  // No block leaves while the other still arrives on its barriers.
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace strata::cuda::sm90
