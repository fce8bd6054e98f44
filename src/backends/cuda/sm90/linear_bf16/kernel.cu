// y = x W^T in bf16 for up to 32 tokens: the weight streams through shared memory once.
//
// Floor: weight bytes / memory bandwidth; 8 x 1024 x 4096 at 4.3 TB/s is 15.6 us, 2560 x 4096 is 4.9 us. The tensor cores need 64 clocks
// for 64 features, 64 channels and 32 tokens, whose 8 KB take 450. Reached on an H200: see docs/kernels/20261121-few-token-linear.md.
//
// Design: output features are the M of wgmma, tokens its N. A block has one tile of 64 features, or of 128 where the SMs are too few for
// that. One thread fills a ring by TMA, a block of 64 channels of the tile and of the tokens in each stage: the tokens come from L2, once
// for every tile, an eighth to half of the weight's bytes. Weights do not depend on the kernel in front, so the ring fills while that runs.
// Everything waits for memory: a stage is free as soon as its product is done, which is worth more than products in a row.
#include <cuda.h>

#include "backends/cuda/common/product_output.h"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma_bf16_narrow.cuh"
#include "backends/cuda/sm90/linear_bf16/config.h"

namespace strata::cuda::sm90 {
namespace {

// The stage of a block of channels, and the parity of its turn.
struct Stage {
  int index = 0;
  uint32_t parity = 0;

  __device__ void next(int stages) {
    if (++index == stages) {
      index = 0;
      parity ^= 1;
    }
  }
};

template <int kTokens, int kWarpgroups>
__global__ void __launch_bounds__(bf16_threads(kWarpgroups))
    few_tokens_bf16_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x,
                           const __grid_constant__ Bf16LinearArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  constexpr int kConsumers = 128 * kWarpgroups, kTile = kBf16Rows * kWarpgroups;
  constexpr int kPartBytes = kBf16Rows * kBf16Block * 2, kWeightBytes = kWarpgroups * kPartBytes;
  const Bf16LinearShared at(kTokens, kTile, a.stages);
  const uint32_t ring = ptx::shared_address(shared);
  const uint32_t full = ptx::shared_address(shared + at.barriers), empty = full + a.stages * 8;
  const int group = static_cast<int>(blockIdx.x) / a.tiles_per_group;
  const int first_feature = (static_cast<int>(blockIdx.x) - group * a.tiles_per_group) * kTile;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;

  if (thread == kConsumers) {
    ptx::prefetch_tensor_map(&weights);
    ptx::prefetch_tensor_map(&x);
    for (int i = 0; i < a.stages; ++i) {
      ptx::mbarrier_init(full + i * 8, 1);
      ptx::mbarrier_init(empty + i * 8, kConsumers / 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  if (thread >= kConsumers) {
    if (thread > kConsumers) return;
    const uint64_t policy = ptx::evict_first_policy();
    const auto load_weights = [&](int block, int stage) {
      ptx::mbarrier_arrive_expect_tx(full + stage * 8, static_cast<uint32_t>(at.stage));
      ptx::tma_load_2d(ring + stage * at.stage, &weights, block * kBf16Block, group * a.n + first_feature, full + stage * 8, policy);
    };
    const auto load_tokens = [&](int block, int stage) {
      ptx::tma_load_3d(ring + stage * at.stage + kWeightBytes, &x, block * kBf16Block, 0, group, full + stage * 8);
    };
    const int prologue = min(a.num_blocks, a.stages);
    for (int block = 0; block < prologue; ++block) load_weights(block, block);
    ptx::wait_for_previous_kernel();
    ptx::launch_dependents();
    for (int block = 0; block < prologue; ++block) load_tokens(block, block);
    Stage stage;
    for (int block = prologue; block < a.num_blocks; ++block, stage.next(a.stages)) {
      ptx::mbarrier_wait(empty + stage.index * 8, stage.parity);
      load_weights(block, stage.index);
      load_tokens(block, stage.index);
    }
    return;
  }

  float sums[kTokens / 2];
  Stage stage;
  for (int block = 0; block < a.num_blocks; ++block, stage.next(a.stages)) {
    ptx::mbarrier_wait(full + stage.index * 8, stage.parity);
    const uint32_t w = ring + stage.index * at.stage;
    const uint64_t w_rows = ptx::wgmma_descriptor(w + thread / 128 * kPartBytes), x_rows = ptx::wgmma_descriptor(w + kWeightBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBf16Block / 16; ++i) ptx::wgmma_bf16(sums, w_rows + 2 * i, x_rows + 2 * i, block > 0 || i > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (lane == 0) ptx::mbarrier_arrive(empty + stage.index * 8);
  }

  // A thread holds sums of many tokens; consecutive threads store consecutive features of one.
  constexpr int kStride = Bf16LinearShared::sum_stride(kTile);
  float* const turned = reinterpret_cast<float*>(shared + at.sums);
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    const int token = i / 4 * 8 + 2 * (lane % 4) + i % 2, row = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
    turned[token * kStride + row] = sums[i];
  }
  ptx::barrier_sync(1, kConsumers);
  const int features = min(a.n - first_feature, kTile);
  for (int i = thread; i < a.num_tokens * kTile; i += kConsumers) {
    const int token = i / kTile, row = i % kTile;
    if (row < features) store_output(a, group, token, first_feature + row, turned[token * kStride + row]);
  }
}

template <int kTokens>
const void* kernel(int warpgroups) {
  return reinterpret_cast<const void*>(warpgroups == 1 ? few_tokens_bf16_kernel<kTokens, 1> : few_tokens_bf16_kernel<kTokens, 2>);
}

}  // namespace

const void* bf16_linear_kernel(int token_rows, int warpgroups) {
  return token_rows == 16 ? kernel<16>(warpgroups) : kernel<32>(warpgroups);
}

}  // namespace strata::cuda::sm90
