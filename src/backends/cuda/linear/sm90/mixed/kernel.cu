// y = x W^T for few tokens of bf16 and an e4m3 weight that is converted to bf16 in registers: the result of the dequantised weight, for
// half of its bytes.
//
// Floor: weight bytes / memory bandwidth; 8 x 1024 x 4096 at 4.3 TB/s is 7.8 us, 16 groups 15.6 us. A row group's block of 64 features and
// 128 channels has 8 KB, which take an SM 440 clocks. Each of four warps converts it with 128 instructions; its products are 8 wgmma of 20
// clocks each at 32 tokens. Reached on an H200: see docs/kernels/linear.md.
//
// Design: as streamed.cu, with features as the M of wgmma and tokens as its N. Two threads fill a ring, whose stages hold a block of 128
// channels of the tile and of the tokens. Weights are loaded at once, by one bulk copy each, because the packed weight has the order of
// reading. Tokens are loaded by TMA when the preceding kernel has finished. Four warpgroups multiply; those with the same row group
// alternate in its blocks. A thread reads its operands of 64 channels and two rows in two units of 16 bytes. It converts them, with their
// scale, while the previous 64 channels are multiplied, and passes them to wgmma in registers; tokens are the operand in shared memory. A
// separate ring for the tokens, with fewer stages, is slower (the note). More than 64 tokens are tiles of up to 128, with two warpgroups:
// all of them load tokens from L2, at 5.7 TB/s in total, which is their bound.
#include <cuda.h>

#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/linear/sm90/fill_ring.cuh"
#include "backends/cuda/linear/sm90/finish_tile.cuh"
#include "backends/cuda/linear/sm90/mixed/config.h"
#include "backends/cuda/linear/sm90/mixed/mixed_values.cuh"
#include "backends/cuda/linear/sm90/mixed/tile_weights.cuh"
#include "backends/cuda/linear/sm90/own_tile.cuh"
#include "backends/cuda/linear/sm90/ring_stage.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma_offset.cuh"
#include "backends/cuda/ptx/wgmma_f16_rs.cuh"

namespace strata::cuda::sm90 {
namespace {

// The arguments of one tile of tokens.
__device__ __forceinline__ MixedArgs of_token_tile(MixedArgs a, int tile) {
  const int first = tile * a.tile_tokens;
  a.num_tokens = min(a.num_tokens - first, a.tile_tokens);
  a.y = static_cast<uint8_t*>(a.y) + first * a.y_stride * (a.y_scale != nullptr ? 1 : a.y_f32 ? 4 : 2);
  if (a.y_scale != nullptr) a.y_scale += first * a.y_scale_stride;
  return a;
}

template <int kTokens, int kRowTiles, bool kQuantized>
__global__ void __launch_bounds__(streamed_tile(kTokens, kRowTiles).threads(), 1)
    mixed_kernel_of(const __grid_constant__ CUtensorMap x, const __grid_constant__ MixedArgs args) {
  constexpr StreamedTile kTile = streamed_tile(kTokens, kRowTiles);
  constexpr int kConsumers = kTile.consumers();
  const MixedArgs a = kTokens == kMixedTokens ? of_token_tile(args, blockIdx.z) : args;
  constexpr int kSlices = kTile.slices;
  extern __shared__ __align__(1024) uint8_t shared[];
  const MixedShared at(kTile, a.split, a.max_chunk, a.stages);
  const uint32_t ring = ptx::shared_address(shared);
  const uint32_t weights_full = ring + at.barriers, tokens_full = weights_full + a.stages * 8, empty = tokens_full + a.stages * 8;
  const uint32_t all_sent = empty + a.stages * 8;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const OwnTile tile(a);
  const int first_token = kTokens == kMixedTokens ? static_cast<int>(blockIdx.z) * a.tile_tokens : 0;

  if (thread == kConsumers) {
    ptx::prefetch_tensor_map(&x);
#pragma unroll 1
    for (int i = 0; i < a.stages; ++i) {
      ptx::mbarrier_init(weights_full + i * 8, 1);
      ptx::mbarrier_init(tokens_full + i * 8, 1);
      ptx::mbarrier_init(empty + i * 8, 4 * kRowTiles * kWarpArrivals);  // the warps that multiply it
    }
    ptx::mbarrier_init(all_sent, 1);
    ptx::fence_mbarrier_init();
    expect_sent(a, all_sent, tile);
  }
  load_weight_scales<kRowTiles, kConsumers>(a, tile, ring + at.w_scale);
  __syncthreads();
  if (a.split > 1) ptx::cluster_arrive_relaxed();  // the other CTA may send

  if (thread == kConsumers) {
    load_weights<kRowTiles>(a, tile, ring, at.stage, weights_full, empty);
  } else if (thread == kConsumers + 32) {
    ptx::wait_for_previous_kernel();
    ptx::launch_dependents();
    fill_ring(tile.count, a.stages, static_cast<uint32_t>(a.tile_tokens) * kMixedBlock * 2, tokens_full, empty, a.stages,
              [&](int block, int stage, uint32_t there) {
                const int columns = (tile.first_block + block) * (kMixedBlock / 64);
                ptx::tma_load_groups(ring + stage * at.stage + kRowTiles * kMixedRowTileBytes, &x, first_token, columns, tile.group, there);
              });
  }
  if (thread >= kConsumers) return;
  const int warpgroup = own_warpgroup(), row_tile = warpgroup / kSlices, slice = warpgroup % kSlices, warp = thread / 32 % 4;
  const float* const w_scales = reinterpret_cast<const float*>(shared + at.w_scale) + row_tile * a.max_chunk;
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::barrier_sync(1, kConsumers);  // scales have arrived
  float sums[kTokens / 2] = {};
  MixedOperands values[2];
  RingStage stage{.index = slice};
  uint32_t multiplied = 0;  // the barrier of the previous stage, released when its products have ended
#pragma unroll 1
  for (int block = slice; block < tile.count; block += kSlices, stage.next(a.stages, kSlices)) {
    const MixedScale scale(w_scales[block]);
    ptx::mbarrier_wait(weights_full + stage.index * 8, stage.parity);
    const auto* const units =
        reinterpret_cast<const uint4*>(shared + stage.index * at.stage + row_tile * kMixedRowTileBytes) + warp * 128 + lane;
    const uint64_t x_rows = ptx::wgmma_descriptor(ring + stage.index * at.stage + kRowTiles * kMixedRowTileBytes);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      ptx::wgmma_wait<1>();  // the products before last have read their operands
      if (j == 1 && arrives(lane) && multiplied != 0) ptx::mbarrier_arrive(multiplied);
      mixed_operands(values[j], units + j * 64, scale);
      if (j == 0) ptx::mbarrier_wait(tokens_full + stage.index * 8, stage.parity);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::wgmma_bf16_rs(sums, values[j][i], ptx::offset(x_rows, j * a.tile_tokens * (128 / 16) + 2 * i), true);
      ptx::wgmma_commit();
    }
    multiplied = empty + stage.index * 8;
  }
  ptx::wgmma_wait<0>();
  const auto store = [&](float* partial) {
    store_partial<kTile>(sums, partial + slice * kTokens * kTile.partial_stride() + row_tile * kMixedRows + warp * 16);
  };
  end_tile<kTile, kQuantized>(store, a, shared, at.sent, all_sent, tile);
}

template <int kTokens>
const void* kernel(int row_tiles, bool quantized) {
  return reinterpret_cast<const void*>(quantized        ? mixed_kernel_of<kTokens, 2, true>
                                       : row_tiles == 2 ? mixed_kernel_of<kTokens, 2, false>
                                                        : mixed_kernel_of<kTokens, 1, false>);
}

}  // namespace

const void* mixed_kernel(const StreamedTile& tile, bool quantized) {
  return with_tile_tokens(tile.tokens, [&]<int kTokens>() { return kernel<kTokens>(tile.row_tiles, quantized); });
}

}  // namespace strata::cuda::sm90
