// y = x W^T for 1 to 128 tokens where every CTA has at most one tile: weights and tokens stream through shared memory together.
//
// Floor: weight bytes / memory bandwidth; 7168 x 16384 at 4.3 TB/s is 27.3 us, 4096 x 8192 is 7.8 us. Reached on an H200 at 32 tokens,
// including the quantiser before it: 31.0 and 12.7 us (docs/kernels/linear.md).
//
// Design: a tile has 16 to 128 output features (the M of wgmma; tokens are its N), as many as make one wave of all SMs. One CTA has it, or
// two share it, each with a share of k. Two threads fill a ring by TMA, whose stages hold a block of 128 channels of the tile and of the
// tokens. Weights, which do not depend on the preceding kernel, are loaded at once, a limited number at a time; tokens are loaded when that
// kernel has finished. So the first product waits only for its own tokens, and no room is kept for all tokens: the ring is as large as
// shared memory allows. Four warpgroups multiply blocks alternately, because waiting, multiplying and scaling in sequence takes one
// warpgroup as long as memory or longer. At the end the partial sums replace the ring, and are added over warpgroups; two CTAs add
// alternate tokens. Each CTA sends the other its sums of the other's tokens, by stores that arrive on a barrier: a releasing cluster
// barrier would wait for everything that the SM has in flight. A warp or half of one then has a token's features of the tile, which can be
// quantised under one scale if they are 128.
#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/linear/sm90/block_product.cuh"
#include "backends/cuda/linear/sm90/fill_ring.cuh"
#include "backends/cuda/linear/sm90/finish_tile.cuh"
#include "backends/cuda/linear/sm90/own_tile.cuh"
#include "backends/cuda/linear/sm90/ring_stage.cuh"
#include "backends/cuda/linear/sm90/streamed.h"
#include "backends/cuda/linear/sm90/token_scales.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"

namespace strata::cuda::sm90 {
namespace {

template <int kTokens, int kRowTiles, bool kQuantized>
__global__ void __launch_bounds__(streamed_tile(kTokens, kRowTiles).threads(), 1)
    streamed_kernel_of(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x,
                       const __grid_constant__ StreamedArgs a) {
  constexpr StreamedTile kTile = streamed_tile(kTokens, kRowTiles);
  constexpr int kSlices = kTile.slices, kConsumers = kTile.consumers();
  extern __shared__ __align__(1024) uint8_t shared[];
  const StreamedShared at(kTile, a.tile_rows, a.split, a.max_chunk, a.stages);
  const uint32_t ring = ptx::shared_address(shared);
  const uint32_t weights_there = ring + at.barriers, tokens_full = weights_there + a.stages * 8, empty = tokens_full + a.stages * 8;
  const uint32_t all_sent = empty + a.stages * 8;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const OwnTile tile(a);

  if (thread == kConsumers) {
    ptx::prefetch_tensor_map(&weights);
    ptx::prefetch_tensor_map(&x);
#pragma unroll 1
    for (int i = 0; i < a.stages; ++i) {
      ptx::mbarrier_init(weights_there + i * 8, 1);
      ptx::mbarrier_init(tokens_full + i * 8, 1);
      ptx::mbarrier_init(empty + i * 8, 4 * kRowTiles * kWarpArrivals);  // the warps that multiply it
    }
    ptx::mbarrier_init(all_sent, 1);
    ptx::fence_mbarrier_init();
    expect_sent(a, all_sent, tile);
  }
  // The weight's scales of all rows of the tile, from one or more blocks of rows.
  const int last_scale_row = (static_cast<int>(gridDim.y) * a.n - 1) / a.weight_block_rows;
  const auto scale_row = [&](int row) { return min(row / a.weight_block_rows, last_scale_row); };
  const int first_scale_row = scale_row(tile.first_row);
  if (thread < kConsumers) {
    const int rows = scale_row(tile.first_row + a.tile_rows - 1) - first_scale_row + 1;
#pragma unroll 1
    for (int i = thread; i < rows * tile.count; i += kConsumers) {
      const int row = i / tile.count, block = i - row * tile.count;
      ptx::cp_async_4(ring + at.w_scale + (row * a.max_chunk + block) * 4,
                      a.w_scale + (first_scale_row + row) * a.w_scale_stride + tile.first_block + block);
    }
  }
  __syncthreads();
  if (a.split > 1) ptx::cluster_arrive_relaxed();  // the other CTA may send

  const int weight_bytes = a.tile_rows * kLinearBlock;
  if (thread == kConsumers) {
    const uint64_t policy = ptx::evict_first_policy();
    fill_ring(tile.count, a.stages, static_cast<uint32_t>(weight_bytes), weights_there, empty, a.in_flight,
              [&](int block, int stage, uint32_t there) {
                ptx::tma_load_2d(ring + stage * at.stage, &weights, (tile.first_block + block) * kLinearBlock, tile.first_row, there,
                                 policy);
              });
  } else if (thread == kConsumers + 32) {
    ptx::wait_for_previous_kernel();
    ptx::launch_dependents();
    fill_ring(tile.count, a.stages, kTokens * kLinearBlock, tokens_full, empty, a.stages, [&](int block, int stage, uint32_t there) {
      ptx::tma_load_3d(ring + stage * at.stage + weight_bytes, &x, (tile.first_block + block) * kLinearBlock / 2, 0, tile.group, there);
    });
  }
  if (thread >= kConsumers) return;
  const int warpgroup = own_warpgroup(), row_tile = warpgroup / kSlices, slice = warpgroup % kSlices;
  const int row = row_tile * kLinearRows + thread / 32 % 4 * 16;  // of this warp
  const float* const w_scales = reinterpret_cast<const float*>(shared + at.w_scale) +
                                (scale_row(tile.first_row + min(row, a.tile_rows - 1)) - first_scale_row) * a.max_chunk;
  const float* const x_scales = reinterpret_cast<const float*>(shared + at.x_scale) + 2 * (lane % 4);
  ptx::wait_for_previous_kernel();
  load_token_scales<kTokens, kConsumers>(a, tile.group, tile.first_block, tile.count, ring + at.x_scale);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::barrier_sync(1, kConsumers);
  float sums[kTokens / 2] = {};
  RingStage stage{.index = slice};
#pragma unroll 1
  for (int block = slice; block < tile.count; block += kSlices, stage.next(a.stages, kSlices)) {
    const uint32_t rows = ring + stage.index * at.stage;
    ptx::mbarrier_wait(weights_there + stage.index * 8, stage.parity);
    add_block<kTokens>(sums, rows + row_tile * kLinearRows * kLinearBlock, rows + weight_bytes, w_scales + block,
                       x_scales + block * kTokens, tokens_full + stage.index * 8, stage.parity, empty + stage.index * 8);
  }
  const auto store = [&](float* partial) { store_partial<kTile>(sums, partial + slice * kTokens * kTile.partial_stride() + row); };
  end_tile<kTile, kQuantized>(store, a, shared, at.sent, all_sent, tile);
}

template <int kTokens>
const void* kernel(int row_tiles, bool quantized) {
  return reinterpret_cast<const void*>(quantized        ? streamed_kernel_of<kTokens, 2, true>
                                       : row_tiles == 2 ? streamed_kernel_of<kTokens, 2, false>
                                                        : streamed_kernel_of<kTokens, 1, false>);
}

}  // namespace

const void* streamed_kernel(const StreamedTile& tile, bool quantized) {
  return with_tile_tokens(tile.tokens, [&]<int kTokens>() { return kernel<kTokens>(tile.row_tiles, quantized); });
}

}  // namespace strata::cuda::sm90
