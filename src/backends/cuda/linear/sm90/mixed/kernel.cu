// y = x W^T for few tokens of bf16 and a weight of e4m3 codes, which become bf16 in registers: what the dequantised weight gives, for half
// of its bytes.
//
// Floor: weight bytes / memory bandwidth; 8 x 1024 x 4096 at 4.3 TB/s is 7.8 us, 16 groups 15.6 us. A part's block of 64 features and 128
// channels has 8 KB, which take an SM 440 clocks; its codes cost each of four warps 128 instructions to convert, its products 8 wgmma, of
// 20 clocks each at 32 tokens. Reached on an H200: see docs/kernels/20261123-mixed-linear.md.
//
// Design: that of streamed.cu, with features as the M of wgmma and tokens as its N. Two threads fill a ring, a block of 128 channels of the
// tile and of the tokens in each stage: codes by one bulk copy, as the packed weight has them in the order of reading, at once, tokens by
// TMA, when the kernel in front has ended. Four warpgroups multiply; those that have a part take its blocks in turns. A thread reads its
// operands of 64 channels and two rows in two pieces of 16 bytes, converts them, with their scale, while the products of the 64 channels
// before run, and hands them to wgmma in registers; tokens are its operand in shared memory. A ring of its own for the tokens, with fewer
// stages, is slower (the note). More than 64 tokens are tiles of up to 128, of two warpgroups: L2 brings tokens to all of them, at 5.7 TB/s
// of what it brings together, which bounds these.
#include <cuda.h>

#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/linear/sm90/fill_ring.cuh"
#include "backends/cuda/linear/sm90/finish_tile.cuh"
#include "backends/cuda/linear/sm90/mixed/config.h"
#include "backends/cuda/linear/sm90/mixed/mixed_values.cuh"
#include "backends/cuda/linear/sm90/mixed/tile_codes.cuh"
#include "backends/cuda/linear/sm90/own_tile.cuh"
#include "backends/cuda/linear/sm90/ring_stage.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma_behind.cuh"
#include "backends/cuda/ptx/wgmma_f16_rs.cuh"

namespace strata::cuda::sm90 {
namespace {

// The call of one tile of tokens.
__device__ __forceinline__ MixedArgs of_token_tile(MixedArgs a, int tile) {
  const int first = tile * a.tile_tokens;
  a.num_tokens = min(a.num_tokens - first, a.tile_tokens);
  a.y = static_cast<uint8_t*>(a.y) + first * a.y_stride * (a.y_scale != nullptr ? 1 : a.y_f32 ? 4 : 2);
  if (a.y_scale != nullptr) a.y_scale += first * a.y_scale_stride;
  return a;
}

template <int kTokens, int kParts, bool kCodes>
__global__ void __launch_bounds__(streamed_tile(kTokens, kParts).threads(), 1)
    mixed_kernel_of(const __grid_constant__ CUtensorMap x, const __grid_constant__ MixedArgs args) {
  constexpr StreamedTile kTile = streamed_tile(kTokens, kParts);
  constexpr int kConsumers = kTile.consumers();
  const MixedArgs a = kTokens == kMixedTokens ? of_token_tile(args, blockIdx.z) : args;
  constexpr int kSlices = kTile.slices;
  extern __shared__ __align__(1024) uint8_t shared[];
  const MixedShared at(kTile, a.split, a.max_chunk, a.stages);
  const uint32_t ring = ptx::shared_address(shared);
  const uint32_t codes_there = ring + at.barriers, tokens_there = codes_there + a.stages * 8, empty = tokens_there + a.stages * 8;
  const uint32_t all_sent = empty + a.stages * 8;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const OwnTile tile(a);
  const int first_token = kTokens == kMixedTokens ? static_cast<int>(blockIdx.z) * a.tile_tokens : 0;

  if (thread == kConsumers) {
    ptx::prefetch_tensor_map(&x);
#pragma unroll 1
    for (int i = 0; i < a.stages; ++i) {
      ptx::mbarrier_init(codes_there + i * 8, 1);
      ptx::mbarrier_init(tokens_there + i * 8, 1);
      ptx::mbarrier_init(empty + i * 8, 4 * kParts * kWarpArrivals);  // the warps that multiply it
    }
    ptx::mbarrier_init(all_sent, 1);
    ptx::fence_mbarrier_init();
    expect_sent(a, all_sent, tile);
  }
  load_weight_scales<kParts, kConsumers>(a, tile, ring + at.w_scale);
  __syncthreads();
  if (a.split > 1) ptx::cluster_arrive_relaxed();  // the other CTA may send

  if (thread == kConsumers) {
    load_codes<kParts>(a, tile, ring, at.stage, codes_there, empty);
  } else if (thread == kConsumers + 32) {
    ptx::wait_for_previous_kernel();
    ptx::launch_dependents();
    fill_ring(tile.count, a.stages, static_cast<uint32_t>(a.tile_tokens) * kMixedBlock * 2, tokens_there, empty, a.stages,
              [&](int block, int stage, uint32_t there) {
                const int columns = (tile.first_block + block) * (kMixedBlock / 64);
                ptx::tma_load_groups(ring + stage * at.stage + kParts * kMixedPartBytes, &x, first_token, columns, tile.group, there);
              });
  }
  if (thread >= kConsumers) return;
  const int warpgroup = own_warpgroup(), part = warpgroup / kSlices, slice = warpgroup % kSlices, warp = thread / 32 % 4;
  const float* const w_scales = reinterpret_cast<const float*>(shared + at.w_scale) + part * a.max_chunk;
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::barrier_sync(1, kConsumers);  // scales are there
  float sums[kTokens / 2] = {};
  MixedOperands values[2];
  RingStage stage{.index = slice};
  uint32_t multiplied = 0;  // the barrier of the stage in front, which is given back when its products have ended
#pragma unroll 1
  for (int block = slice; block < tile.count; block += kSlices, stage.next(a.stages, kSlices)) {
    const MixedScale scale(w_scales[block]);
    ptx::mbarrier_wait(codes_there + stage.index * 8, stage.parity);
    const auto* const pieces = reinterpret_cast<const uint4*>(shared + stage.index * at.stage + part * kMixedPartBytes) + warp * 128 + lane;
    const uint64_t x_rows = ptx::wgmma_descriptor(ring + stage.index * at.stage + kParts * kMixedPartBytes);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      ptx::wgmma_wait<1>();  // the products before last have read their operands
      if (j == 1 && arrives(lane) && multiplied != 0) ptx::mbarrier_arrive(multiplied);
      mixed_operands(values[j], pieces + j * 64, scale);
      if (j == 0) ptx::mbarrier_wait(tokens_there + stage.index * 8, stage.parity);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::wgmma_bf16_rs(sums, values[j][i], ptx::behind(x_rows, j * a.tile_tokens * (128 / 16) + 2 * i), true);
      ptx::wgmma_commit();
    }
    multiplied = empty + stage.index * 8;
  }
  ptx::wgmma_wait<0>();
  const auto store = [&](float* partial) {
    store_partial<kTile>(sums, partial + slice * kTokens * kTile.partial_stride() + part * kMixedRows + warp * 16);
  };
  end_tile<kTile, kCodes>(store, a, shared, at.sent, all_sent, tile);
}

template <int kTokens>
const void* kernel(int parts, bool codes) {
  return reinterpret_cast<const void*>(codes        ? mixed_kernel_of<kTokens, 2, true>
                                       : parts == 2 ? mixed_kernel_of<kTokens, 2, false>
                                                    : mixed_kernel_of<kTokens, 1, false>);
}

}  // namespace

const void* mixed_kernel(const StreamedTile& tile, bool codes) {
  return with_tile_tokens(tile.tokens, [&]<int kTokens>() { return kernel<kTokens>(tile.parts, codes); });
}

}  // namespace strata::cuda::sm90
