// y = x W^T in bf16 for up to 32 tokens: the weight streams through shared memory once.
//
// Floor: weight bytes / memory bandwidth; 8 x 1024 x 4096 at 4.3 TB/s is 15.6 us, 2560 x 4096 is 4.9 us. The tensor cores need 64 clocks
// for 64 features, 64 channels and 32 tokens, whose 8 KB take 450. Reached on an H200: see docs/kernels/linear.md.
//
// Design: output features are the M of wgmma, tokens its N. A CTA has one tile of 64 features, or of 128 where the SMs are too few for
// that; or several of 256, with so few channels that all are in shared memory at once. Two threads fill a ring by TMA, whose stages hold a
// block of 64 channels of the tile and of the tokens. Every tile loads the tokens from L2, an eighth to half of the weight's bytes. Weights
// do not depend on the preceding kernel, so the ring fills while that runs. Code is short, and only product loops are unrolled: in a layer
// a call starts with cold instruction caches. Four warpgroups multiply blocks alternately: one alone takes 0.19 us a block however fast
// memory is, and cannot catch up after the full ring waited for the tokens.
#include <cuda.h>

#include "backends/cuda/device/quantize_activation.cuh"
#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/linear/sm90/bf16/config.h"
#include "backends/cuda/linear/sm90/ring_stage.cuh"
#include "backends/cuda/linear/sm90/store_features.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/cluster_async.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma_bf16_narrow.cuh"

namespace strata::cuda::sm90 {
namespace {

// Quantises a tile whose sums begin at `sums`: 16 threads per token. Of two tiles under one scale each CTA sends the other its tokens'
// largest values, to others_largest; they arrive on the barrier others_there.
template <Bf16Tile kTile>
__device__ __forceinline__ void store_quantized_tile(const Bf16LinearArgs& a, int group, int first_feature, const float* sums,
                                                     const float* others_largest, uint32_t others_there) {
  constexpr int kFeatures = kTile.rows() / kQuantizeLanes;
  static_assert(kTile.tokens * kQuantizeLanes <= kBf16Consumers && kTile.tiles_of_scale() <= 2);
  const int thread = static_cast<int>(threadIdx.x), token = thread / kQuantizeLanes, feature = thread % kQuantizeLanes * kFeatures;
  if (token >= kTile.tokens) return;
  float values[kFeatures] = {};
#pragma unroll
  for (int slice = 0; slice < kTile.slices(); ++slice) {
    const float* const from = sums + (slice * kTile.tokens + token) * kTile.sum_stride() + feature;
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) values[i] += from[i];
  }
#pragma unroll
  for (int i = 0; i < kFeatures; i += 2) {
    const uint32_t rounded = pack_bf16(values[i], values[i + 1]);
    values[i] = bf16_low(rounded), values[i + 1] = bf16_high(rounded);
  }
  float largest = lanes_max<kQuantizeLanes>(largest_of(values));
  if constexpr (kTile.tiles_of_scale() == 2) {
    const uint32_t other = 1 - ptx::cluster_rank();
    if (feature == 0) {
      ptx::store_async_f32(ptx::map_shared(ptx::shared_address(others_largest + token), other), largest,
                           ptx::map_shared(others_there, other));
    }
    __syncwarp();  // waiting lanes do not keep others from sending
    ptx::mbarrier_wait_cluster(others_there, 0);
    largest = fmaxf(largest, others_largest[token]);
  }
  uint32_t quantized[kFeatures / 4];
  const float scale = quantize_under(largest, values, a.ue8m0, quantized);
  if (token >= a.num_tokens) return;
  const int channel = first_feature + feature;
  store_words(static_cast<uint8_t*>(a.y) + token * a.y_stride + group * a.y_group + channel, quantized);
  if (channel % kActivationBlock == 0) {
    a.y_scale[token * a.y_scale_stride + group * a.y_scale_group + channel / kActivationBlock] = scale;
  }
}

// Iterates over the tiles in order.
struct TileCoord {
  int group, first_feature;
  __device__ TileCoord(const Bf16LinearArgs& a, int tile, int rows)
      : group(tile / a.tiles_per_group), first_feature((tile - group * a.tiles_per_group) * rows) {}
  __device__ void next(const Bf16LinearArgs& a, int rows) {
    first_feature += rows;
    if (first_feature >= a.n) first_feature = 0, ++group;
  }
};

// Tiles of up to four groups of 64 features; quantised output is of one tile. Of the warpgroups with the same group, each takes every
// kSlices-th block of channels.
template <int kTokens, int kRowTiles, bool kQuantized>
__global__ void __launch_bounds__(kBf16Threads)
    few_tokens_bf16_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x,
                           const __grid_constant__ Bf16LinearArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  constexpr Bf16Tile kTile{kTokens, kRowTiles};
  constexpr int kConsumers = kBf16Consumers, kSlices = kTile.slices(), kRowTileBytes = kBf16Rows * kBf16Block * 2;
  constexpr int kStageBytes = kTile.stage_bytes(), kWeightBytes = kTile.weight_bytes();
  const Bf16LinearShared at(kTile, a.stages);
  const uint32_t ring = ptx::shared_address(shared);
  const uint32_t full = ptx::shared_address(shared + at.barriers), empty = full + a.stages * 8;
  const uint32_t others_there = empty + a.stages * 8;
  constexpr bool kPair = kQuantized && kTile.tiles_of_scale() == 2;
  const int first_tile = static_cast<int>(blockIdx.x) * a.tiles_per_block, end_tile = min(first_tile + a.tiles_per_block, a.num_tiles);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;

  if (thread == kConsumers) {
    ptx::prefetch_tensor_map(&weights);
    ptx::prefetch_tensor_map(&x);
#pragma unroll 1
    for (int i = 0; i < a.stages; ++i) {
      ptx::mbarrier_init(full + i * 8, 2);                               // the weights, the tokens
      ptx::mbarrier_init(empty + i * 8, 4 * kRowTiles * kWarpArrivals);  // the warps that multiply it
    }
    ptx::mbarrier_init(others_there, 1);
    ptx::fence_mbarrier_init();
    if constexpr (kPair) ptx::mbarrier_arrive_expect_tx(others_there, kTokens * 4);
  }
  __syncthreads();
  if constexpr (kPair) ptx::cluster_arrive_relaxed();  // the other CTA may send

  if (thread >= kConsumers) {
    if (lane > 0) return;
    const auto fill = [&](uint32_t bytes, const auto& issue) {
      RingStage stage;
      TileCoord coord(a, first_tile, kTile.rows());
#pragma unroll 1
      for (int tile = first_tile; tile < end_tile; ++tile, coord.next(a, kTile.rows())) {
#pragma unroll 1
        for (int block = 0; block < a.num_blocks; ++block, stage.next(a.stages)) {
          if (block >= a.stages) ptx::mbarrier_wait(empty + stage.index * 8, stage.parity ^ 1);
          ptx::mbarrier_arrive_expect_tx(full + stage.index * 8, bytes);
          issue(coord, block * kBf16Block, ring + stage.index * kStageBytes, full + stage.index * 8);
        }
      }
    };
    if (thread == kConsumers) {
      const uint64_t policy = ptx::evict_first_policy();
      fill(kWeightBytes, [&](const TileCoord& coord, int channel, uint32_t to, uint32_t barrier) {
        ptx::tma_load_2d(to, &weights, channel, coord.group * a.n + coord.first_feature, barrier, policy);
      });
    } else {
      ptx::wait_for_previous_kernel();
      ptx::launch_dependents();
      fill(kTile.token_bytes(), [&](const TileCoord& coord, int channel, uint32_t to, uint32_t barrier) {
        ptx::tma_load_3d(to + kWeightBytes, &x, channel, 0, coord.group, barrier);
      });
    }
    return;
  }

  const int warpgroup = own_warpgroup(), row_tile = warpgroup / kSlices, slice = warpgroup % kSlices;
  TileCoord coord(a, first_tile, kTile.rows());
  int first_stage = 0;  // of a tile
#pragma unroll 1
  for (int tile = first_tile; tile < end_tile; ++tile, first_stage += a.num_blocks, coord.next(a, kTile.rows())) {
    float sums[kTokens / 2] = {};
    RingStage stage{.index = first_stage + slice};
#pragma unroll 1
    for (int block = slice; block < a.num_blocks; block += kSlices, stage.next(a.stages, kSlices)) {
      ptx::mbarrier_wait(full + stage.index * 8, stage.parity);
      const uint32_t w = ring + stage.index * kStageBytes;
      const uint64_t w_rows = ptx::wgmma_descriptor(w + row_tile * kRowTileBytes), x_rows = ptx::wgmma_descriptor(w + kWeightBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kBf16Block / 16; ++i) ptx::wgmma_bf16(sums, w_rows + 2 * i, x_rows + 2 * i, true);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      if (arrives(lane)) ptx::mbarrier_arrive(empty + stage.index * 8);
    }

    // A thread holds sums of many tokens; consecutive threads store consecutive features of one.
    constexpr int kStride = kTile.sum_stride(), kSliceSums = kTokens * kStride;
    float* const transposed = reinterpret_cast<float*>(shared + first_stage * kStageBytes);
    ptx::barrier_sync(1, kConsumers);  // no warp multiplies from this memory any more
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = i / 4 * 8 + 2 * (lane % 4) + i % 2, row = row_tile * kBf16Rows + thread / 32 % 4 * 16 + lane / 4 + i / 2 % 2 * 8;
      transposed[slice * kSliceSums + token * kStride + row] = sums[i];
    }
    ptx::barrier_sync(1, kConsumers);
    if constexpr (kQuantized) {
      if constexpr (kPair) ptx::cluster_wait();
      store_quantized_tile<kTile>(a, coord.group, coord.first_feature, transposed, reinterpret_cast<const float*>(shared + at.largest),
                                  others_there);
      return;
    }
    constexpr int kLanes = kTile.rows() / 4;  // lanes per token
    const int feature = 4 * (thread % kLanes), count = min(a.n - coord.first_feature - feature, 4);
    if (count <= 0) continue;
#pragma unroll 1
    for (int token = thread / kLanes; token < a.num_tokens; token += kConsumers / kLanes) {
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int of_slice = 0; of_slice < kSlices; ++of_slice) {
        const float4 v = *reinterpret_cast<const float4*>(transposed + of_slice * kSliceSums + token * kStride + feature);
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
      }
      store_features(a, coord.group, token, coord.first_feature + feature, sum, count);
    }
  }
}

template <int kTokens, int kRowTiles>
const void* kernel(bool quantized) {
  return reinterpret_cast<const void*>(quantized ? few_tokens_bf16_kernel<kTokens, kRowTiles, true>
                                                 : few_tokens_bf16_kernel<kTokens, kRowTiles, false>);
}
template <int kTokens>
const void* kernel(int row_tiles, bool quantized) {
  if (row_tiles == 4) return reinterpret_cast<const void*>(few_tokens_bf16_kernel<kTokens, 4, false>);
  return row_tiles == 1 ? kernel<kTokens, 1>(quantized) : kernel<kTokens, 2>(quantized);
}

}  // namespace

const void* bf16_linear_kernel(const Bf16Tile& tile, bool quantized) {
  return tile.tokens == 8    ? kernel<8>(tile.row_tiles, quantized)
         : tile.tokens == 16 ? kernel<16>(tile.row_tiles, quantized)
                             : kernel<32>(tile.row_tiles, quantized);
}

}  // namespace strata::cuda::sm90
