// y = x W^T for 1 to 64 tokens where there are more tiles of 128 features than SMs.
//
// Floor: weight bytes / memory bandwidth; 65536 x 1536 at 4.3 TB/s is 23.4 us, 32768 x 1024 is 7.8 us. Reached on an H200 at 32 tokens,
// including the quantiser before it: 25.8 and 11.2 us (docs/kernels/linear.md).
//
// Design: output features are the M of wgmma, tokens its N. A CTA has several tiles, and two teams of two warpgroups alternate: while
// one stores, the other multiplies. A team multiplies all channels of its tile, so no sums are shared. Each team has a ring that one
// thread fills by TMA, 128 features and channels per stage, with a weight scale for each. The tokens' rows are loaded once, each block
// with its own barrier, and stay. Weights do not depend on the preceding kernel (the activation's quantiser), so the rings fill while
// that runs.
#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/linear/sm90/block_product.cuh"
#include "backends/cuda/linear/sm90/many_tiles.h"
#include "backends/cuda/linear/sm90/ring_stage.cuh"
#include "backends/cuda/linear/sm90/token_scales.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/movmatrix.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"

namespace strata::cuda::sm90 {
namespace {

// The tiles of a team, and its addresses in shared memory.
struct Team {
  int first_tile, last_tile;  // every kManyTilesTeams-th
  uint32_t ring, w_scale, full, empty;

  __device__ Team(const ManyTilesArgs& a, const ManyTilesShared& at, uint32_t shared, int team)
      : first_tile(static_cast<int>(int64_t{a.num_tiles} * blockIdx.x / gridDim.x) + team),
        last_tile(static_cast<int>(int64_t{a.num_tiles} * (blockIdx.x + 1) / gridDim.x)),
        ring(shared + team * a.stages * kManyTilesStage),
        w_scale(shared + at.w_scale + team * a.stages * 4),
        full(shared + at.barriers + team * a.stages * 16),
        empty(full + a.stages * 8) {}
};

// By one thread of a team; that of the first team also loads the tokens.
template <int kTokens>
__device__ inline void fill_ring(const CUtensorMap& weights, const CUtensorMap& x, const ManyTilesArgs& a, const Team& team,
                                 const ManyTilesShared& at, uint32_t shared, uint32_t x_full, bool brings_tokens) {
  const uint64_t policy = ptx::evict_first_policy();
  const int tiles = (team.last_tile - team.first_tile + kManyTilesTeams - 1) / kManyTilesTeams;
  const int units = tiles * a.num_blocks, prologue = min(units, a.stages);
  int tile = team.first_tile, block = 0;
  RingStage stage;
  const auto load = [&] {
    const int row = tile * kManyTilesRows;
    const uint32_t full = team.full + stage.index * 8;
    ptx::mbarrier_arrive_expect_tx(full, kManyTilesStage);
    ptx::tma_load_2d(team.ring + stage.index * kManyTilesStage, &weights, block * kLinearBlock, row, full, policy);
    ptx::cp_async_4(team.w_scale + stage.index * 4, a.w_scale + row / a.weight_block_rows * a.w_scale_stride + block);
    ptx::cp_async_arrive(full);
    stage.next(a.stages);
    if (++block == a.num_blocks) {
      block = 0;
      tile += kManyTilesTeams;
    }
  };
#pragma unroll 1
  for (int i = 0; i < prologue; ++i) load();
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  if (brings_tokens) {
#pragma unroll 1
    for (int i = 0; i < a.num_blocks; ++i) {
      const uint32_t barrier = x_full + i * 8;
      ptx::mbarrier_arrive_expect_tx(barrier, kTokens * kLinearBlock);
      ptx::tma_load_3d(shared + at.tokens + i * kTokens * kLinearBlock, &x, i * kLinearBlock / 2, 0, 0, barrier);
    }
  }
#pragma unroll 1
  for (int i = prologue; i < units; ++i) {
    ptx::mbarrier_wait(team.empty + stage.index * 8, stage.parity ^ 1);
    load();
  }
}

// Limits registers as if a CTA had this many threads: with 64 registers per thread, two small CTAs of the indexer's logits fit on the SM
// too. For 64 tokens 64 registers are too few. With 56, two of these CTAs would share an SM while other SMs idle: 32 tokens would use 56
// with descriptors in uniform registers (own_warpgroup).
constexpr int bound(int tokens) { return tokens > 32 ? kManyTilesThreads : 1024; }

template <int kTokens>
__global__ void __launch_bounds__(bound(kTokens), 1)
    many_tiles_kernel_of(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x,
                         const __grid_constant__ ManyTilesArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const ManyTilesShared at(kTokens, a.num_blocks, a.stages);
  const uint32_t base = ptx::shared_address(shared), tokens = base + at.tokens;
  const uint32_t x_full = base + at.barriers + kManyTilesTeams * a.stages * 16;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const bool is_producer = thread >= kManyTilesConsumers;
  const int own_team = is_producer ? (thread - kManyTilesConsumers) / 32 : thread / (kManyTilesConsumers / kManyTilesTeams);
  const Team team(a, at, base, own_team);

  if (thread == kManyTilesConsumers) {
    ptx::prefetch_tensor_map(&weights);
    ptx::prefetch_tensor_map(&x);
#pragma unroll 1
    for (int i = 0; i < kManyTilesTeams; ++i) {
      const Team of(a, at, base, i);
#pragma unroll 1
      for (int j = 0; j < a.stages; ++j) {
        ptx::mbarrier_init(of.full + j * 8, 2);                   // the copy, and that of the scale
        ptx::mbarrier_init(of.empty + j * 8, 8 * kWarpArrivals);  // the warps of a team
      }
    }
#pragma unroll 1
    for (int i = 0; i < a.num_blocks; ++i) ptx::mbarrier_init(x_full + i * 8, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (is_producer) {
    if (lane == 0) fill_ring<kTokens>(weights, x, a, team, at, base, x_full, own_team == 0);
    return;
  }

  ptx::wait_for_previous_kernel();
  load_token_scales<kTokens, kManyTilesConsumers>(a, 0, 0, a.num_blocks, base + at.x_scale);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::barrier_sync(1, kManyTilesConsumers);
  const int row = thread / 128 % 2 * kLinearRows;
  const float* const w_scales = reinterpret_cast<const float*>(shared + at.w_scale) + own_team * a.stages;
  const float* const x_scales = reinterpret_cast<const float*>(shared + at.x_scale) + 2 * (lane % 4);
  RingStage stage;
#pragma unroll 1
  for (int tile = team.first_tile; tile < team.last_tile; tile += kManyTilesTeams) {
    float sums[kTokens / 2] = {};
#pragma unroll 1
    for (int block = 0; block < a.num_blocks; ++block, stage.next(a.stages)) {
      ptx::mbarrier_wait(x_full + block * 8, 0);
      add_block<kTokens>(sums, team.ring + stage.index * kManyTilesStage + row * kLinearBlock, tokens + block * kTokens * kLinearBlock,
                         w_scales + stage.index, x_scales + block * kTokens, team.full + stage.index * 8, stage.parity,
                         team.empty + stage.index * 8);
    }

    // A lane has features f and f + 8 of two neighbouring tokens; in bf16 it stores two neighbouring features of one token.
    const int first_feature = tile * kManyTilesRows + row + thread / 32 % 4 * 16;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = sums[4 * j + 2 * half], high = sums[4 * j + 2 * half + 1];
        if (a.y_f32) {
          const int feature = first_feature + 8 * half + lane / 4, token = 8 * j + 2 * (lane % 4);
          float* const y = static_cast<float*>(a.y) + token * a.y_stride + feature;
          if (feature < a.n && token < a.num_tokens) y[0] = low;
          if (feature < a.n && token + 1 < a.num_tokens) y[a.y_stride] = high;
        } else {
          const uint32_t pair = ptx::transpose_8x8(pack_bf16(low, high));
          const int feature = first_feature + 8 * half + 2 * (lane % 4), token = 8 * j + lane / 4;
          uint16_t* const y = static_cast<uint16_t*>(a.y) + token * a.y_stride + feature;
          if (token < a.num_tokens && feature + 1 < a.n && aligned(y, 4)) {
            *reinterpret_cast<uint32_t*>(y) = pair;
          } else if (token < a.num_tokens) {
            if (feature < a.n) y[0] = static_cast<uint16_t>(pair);
            if (feature + 1 < a.n) y[1] = static_cast<uint16_t>(pair >> 16);
          }
        }
      }
    }
  }
}

}  // namespace

const void* many_tiles_kernel(int token_rows) {
  return reinterpret_cast<const void*>(token_rows == 8    ? many_tiles_kernel_of<8>
                                       : token_rows == 16 ? many_tiles_kernel_of<16>
                                       : token_rows == 32 ? many_tiles_kernel_of<32>
                                                          : many_tiles_kernel_of<64>);
}

}  // namespace strata::cuda::sm90
