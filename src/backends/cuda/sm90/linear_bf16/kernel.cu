// y = x W^T in bf16 for up to 32 tokens: the weight streams through shared memory once.
//
// Floor: weight bytes / memory bandwidth; 8 x 1024 x 4096 at 4.3 TB/s is 15.6 us, 2560 x 4096 is 4.9 us. The tensor cores need 64 clocks
// for 64 features, 64 channels and 32 tokens, whose 8 KB take 450. Reached on an H200: see docs/kernels/20261121-few-token-linear.md.
//
// Design: output features are the M of wgmma, tokens its N. A block has one tile of 64 features, or of 128 where the SMs are too few for
// that. One thread fills a ring by TMA, a block of 64 channels of the tile and of the tokens in each stage: the tokens come from L2, once
// for every tile, an eighth to half of the weight's bytes. Weights do not depend on the kernel in front, so the ring fills while that runs.
// Four warpgroups multiply blocks in turns: one alone takes 0.19 us a block whatever the memory does, and cannot make up for the time that
// the full ring waits for the tokens.
#include <cuda.h>

#include "backends/cuda/common/product_output.h"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma_bf16_narrow.cuh"
#include "backends/cuda/sm90/linear/ring_stage.cuh"
#include "backends/cuda/sm90/linear_bf16/config.h"

namespace strata::cuda::sm90 {
namespace {

// A tile of one or two parts of 64 features. Of those that have a part, each warpgroup takes every kSlices-th block of channels.
template <int kTokens, int kParts>
__global__ void __launch_bounds__(kBf16Threads)
    few_tokens_bf16_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x,
                           const __grid_constant__ Bf16LinearArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  constexpr Bf16Tile kTile{kTokens, kParts};
  constexpr int kConsumers = kBf16Consumers, kSlices = kTile.slices(), kPartBytes = kBf16Rows * kBf16Block * 2;
  constexpr int kStageBytes = kTile.stage_bytes(), kWeightBytes = kParts * kPartBytes;
  const Bf16LinearShared at(kTile, a.stages);
  const uint32_t ring = ptx::shared_address(shared);
  const uint32_t full = ptx::shared_address(shared + at.barriers), empty = full + a.stages * 8;
  const int group = static_cast<int>(blockIdx.x) / a.tiles_per_group;
  const int first_feature = (static_cast<int>(blockIdx.x) - group * a.tiles_per_group) * kTile.rows();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;

  if (thread == kConsumers) {
    ptx::prefetch_tensor_map(&weights);
    ptx::prefetch_tensor_map(&x);
    for (int i = 0; i < a.stages; ++i) {
      ptx::mbarrier_init(full + i * 8, 1);
      ptx::mbarrier_init(empty + i * 8, 4 * kParts);  // the warps that multiply it
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  if (thread >= kConsumers) {
    if (thread > kConsumers) return;
    const uint64_t policy = ptx::evict_first_policy();
    const auto load_weights = [&](int block, int stage) {
      ptx::mbarrier_arrive_expect_tx(full + stage * 8, kStageBytes);
      ptx::tma_load_2d(ring + stage * kStageBytes, &weights, block * kBf16Block, group * a.n + first_feature, full + stage * 8, policy);
    };
    const auto load_tokens = [&](int block, int stage) {
      ptx::tma_load_3d(ring + stage * kStageBytes + kWeightBytes, &x, block * kBf16Block, 0, group, full + stage * 8);
    };
    const int prologue = min(a.num_blocks, a.stages);
    for (int block = 0; block < prologue; ++block) load_weights(block, block);
    ptx::wait_for_previous_kernel();
    ptx::launch_dependents();
    for (int block = 0; block < prologue; ++block) load_tokens(block, block);
    RingStage stage;
    for (int block = prologue; block < a.num_blocks; ++block, stage.next(a.stages)) {
      ptx::mbarrier_wait(empty + stage.index * 8, stage.parity);
      load_weights(block, stage.index);
      load_tokens(block, stage.index);
    }
    return;
  }

  const int part = thread / 128 / kSlices, slice = thread / 128 % kSlices;
  float sums[kTokens / 2] = {};
  RingStage stage{.index = slice};
  for (int block = slice; block < a.num_blocks; block += kSlices, stage.next(a.stages, kSlices)) {
    ptx::mbarrier_wait(full + stage.index * 8, stage.parity);
    const uint32_t w = ring + stage.index * kStageBytes;
    const uint64_t w_rows = ptx::wgmma_descriptor(w + part * kPartBytes), x_rows = ptx::wgmma_descriptor(w + kWeightBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBf16Block / 16; ++i) ptx::wgmma_bf16(sums, w_rows + 2 * i, x_rows + 2 * i, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (lane == 0) ptx::mbarrier_arrive(empty + stage.index * 8);
  }

  // A thread holds sums of many tokens; consecutive threads store consecutive features of one.
  constexpr int kStride = kTile.sum_stride(), kSliceSums = kTokens * kStride;
  float* const turned = reinterpret_cast<float*>(shared);
  ptx::barrier_sync(1, kConsumers);  // nobody multiplies what lies there
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    const int token = i / 4 * 8 + 2 * (lane % 4) + i % 2, row = part * kBf16Rows + thread / 32 % 4 * 16 + lane / 4 + i / 2 % 2 * 8;
    turned[slice * kSliceSums + token * kStride + row] = sums[i];
  }
  ptx::barrier_sync(1, kConsumers);
  const int features = min(a.n - first_feature, kTile.rows());
  for (int i = thread; i < a.num_tokens * features; i += kConsumers) {
    const int token = i / features, row = i - token * features;
    float sum = 0;
#pragma unroll
    for (int of_slice = 0; of_slice < kSlices; ++of_slice) sum += turned[of_slice * kSliceSums + token * kStride + row];
    store_output(a, group, token, first_feature + row, sum);
  }
}

template <int kTokens>
const void* kernel(int parts) {
  return reinterpret_cast<const void*>(parts == 1 ? few_tokens_bf16_kernel<kTokens, 1> : few_tokens_bf16_kernel<kTokens, 2>);
}

}  // namespace

const void* bf16_linear_kernel(const Bf16Tile& tile) {
  return tile.tokens == 8 ? kernel<8>(tile.parts) : tile.tokens == 16 ? kernel<16>(tile.parts) : kernel<32>(tile.parts);
}

}  // namespace strata::cuda::sm90
