// y = x W^T for many tokens of bf16 and an e4m3 weight that is converted to bf16 in registers.
//
// Floor: 2 T N K flops at the machine's bf16 rate: wgmma takes 2048 products a cycle of an SM, 2048 cycles for a tile's block of 128
// channels. In addition, per block: of the 256 KB that shared memory can transfer in that time, wgmma reads 128, copies write 80, weights
// are read for 16. Each of eight warps converts 2048 values by 128 instructions; its scheduler issues 2048 for two warps. Reached on an
// H200: see docs/kernels/linear.md.
//
// Design: a CTA's tile is 128 features, 64 for each of two warpgroups, the M of wgmma, by 256 tokens, its N. With operands in registers an
// instruction takes some 7 cycles more than its products, for any N. Sums (128 registers a thread) stay over all channels. Operands of 64
// channels are converted while the tensor cores multiply the previous 64. The two CTAs of a cluster have neighbouring features and the same
// tokens; each loads half of the tokens for both (multicast). Two threads load: weights at once, tokens when the preceding kernel has
// finished. Clusters walk as in linear_many. Results are stored by TMA, 32 tokens of a warpgroup at a time.
#include <cuda.h>

#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/linear/sm90/mixed/many.h"
#include "backends/cuda/linear/sm90/mixed/mixed_values.cuh"
#include "backends/cuda/linear/sm90/ring_stage.cuh"
#include "backends/cuda/linear/sm90/tile_walk.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/ptx/wgmma_offset.cuh"
#include "backends/cuda/ptx/wgmma_f16_rs.cuh"

namespace strata::cuda::sm90 {
namespace {

using Shared = MixedManyShared;
constexpr int kChannels = 64;  // multiplied at a time
constexpr int kHalves = kMixedBlock / kChannels;

// A ring and the barriers of its stages.
template <int kStages>
struct Ring {
  uint32_t full, empty;  // of the first stage
  RingStage stage;
  __device__ explicit Ring(uint32_t barriers) : full(barriers), empty(barriers + kStages * 8) {}
  __device__ uint32_t full_now() const { return full + stage.index * 8; }
  __device__ void wait_full() const { ptx::mbarrier_wait(full_now(), stage.parity); }
  __device__ void wait_empty() const { ptx::mbarrier_wait(empty + stage.index * 8, stage.parity ^ 1); }
  __device__ void next() { stage.next(kStages); }
};
using TokenRing = Ring<Shared::kTokenStages>;
using WeightRing = Ring<Shared::kWeightStages>;

// Where this CTA's half of its cluster's tile begins.
struct TileCoord {
  int token, group, feature;  // feature: of the group
  bool exists;                // a group's last tile may be the other CTA's alone: then this CTA's features are not stored
  __device__ TileCoord(const MixedManyArgs& a, int tile) {
    const ManyTileCoord of_cluster(a.walk, tile);
    const int rank = static_cast<int>(ptx::cluster_rank()), first = of_cluster.feature + rank * kMixedTileRows;
    token = of_cluster.token;
    group = of_cluster.group;
    exists = first < a.n;
    feature = exists ? first : of_cluster.feature;
  }
  __device__ int packed_tile(const MixedManyArgs& a) const { return (group * a.n + feature) / kMixedTileRows; }
};

// By one thread.
__device__ __forceinline__ void load_weights(const MixedManyArgs& a, uint32_t to, WeightRing ring) {
#pragma unroll 1
  for (ManyTiles tiles; !tiles.done(a.walk); tiles.next()) {
    const uint8_t* weight = a.packed_weight + int64_t{TileCoord(a, tiles.tile).packed_tile(a)} * a.num_blocks * Shared::kWeightBytes;
#pragma unroll 1
    for (int block = 0; block < a.num_blocks; ++block, weight += Shared::kWeightBytes, ring.next()) {
      ring.wait_empty();
      ptx::mbarrier_arrive_expect_tx(ring.full_now(), Shared::kWeightBytes);
      ptx::bulk_load(to + ring.stage.index * Shared::kWeightBytes, weight, Shared::kWeightBytes, ring.full_now());
    }
  }
}

// By one thread, as soon as both CTAs have read a stage's previous contents.
__device__ __forceinline__ void load_tokens(const CUtensorMap& x, const MixedManyArgs& a, uint32_t to, TokenRing ring) {
  constexpr int kOwnBytes = Shared::kTokenBytes / kManyCluster;
  const int rank = static_cast<int>(ptx::cluster_rank());
#pragma unroll 1
  for (ManyTiles tiles; !tiles.done(a.walk); tiles.next()) {
    const TileCoord coord(a, tiles.tile);
#pragma unroll 1
    for (int group = 0; group < a.num_blocks * kHalves; ++group, ring.next()) {
      ring.wait_empty();
      ptx::mbarrier_arrive_expect_tx(ring.full_now(), Shared::kTokenBytes);
      ptx::tma_load_groups_multicast(to + ring.stage.index * Shared::kTokenBytes + rank * kOwnBytes, &x, coord.token + rank * kManyTokens,
                                     group, coord.group, ring.full_now(), (1u << kManyCluster) - 1);
    }
  }
}

// Stores a warpgroup's sums as bf16 to y, through its two buffers in shared memory.
__device__ __forceinline__ void store_sums(const CUtensorMap& y, const float (&sums)[128], uint32_t out, int warpgroup,
                                           const TileCoord& coord) {
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;
  const int matrix = lane / 8, row = lane % 8;  // of four stored at a time: eight features, the next eight; eight tokens, the next eight
  const uint32_t lane_offset = (matrix / 2 * 8 + row) * 128 + ((2 * warp + matrix % 2) ^ row) * 16;
#pragma unroll
  for (int first = 0; first < kMixedManyTokens; first += kMixedManyOutTokens) {
    const uint32_t to = out + first / kMixedManyOutTokens % 2 * Shared::kOutBytes;
    if (thread == 0) ptx::bulk_store_wait_read<1>();  // the buffer's previous contents have been stored
    ptx::barrier_sync(1 + warpgroup, 128);
#pragma unroll
    for (int token = 0; token < kMixedManyOutTokens; token += 16) {
      const float* const s = sums + (first + token) / 2;
      ptx::stmatrix_x4_trans(to + token * 128 + lane_offset, ptx::cvt_bf16x2(s[0], s[1]), ptx::cvt_bf16x2(s[2], s[3]),
                             ptx::cvt_bf16x2(s[4], s[5]), ptx::cvt_bf16x2(s[6], s[7]));
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(1 + warpgroup, 128);
    if (thread == 0) {
      if (coord.exists) ptx::tma_store_3d(&y, to, coord.feature + warpgroup * kMixedRows, coord.token + first, coord.group);
      ptx::bulk_store_commit();
    }
  }
}

// A warpgroup's share of its CTA's tiles.
__device__ __forceinline__ void multiply_tiles(const CUtensorMap& y, const MixedManyArgs& a, const uint8_t* shared, TokenRing tokens,
                                               WeightRing weights) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4;
  const int warpgroup = __shfl_sync(~0u, thread / 128 - 1, 0);
  const uint32_t base = ptx::shared_address(shared), arrive_at = ptx::map_shared(tokens.empty, lane % kManyCluster);
  const auto* const units = reinterpret_cast<const uint4*>(shared + Shared::kWeights + warpgroup * kMixedRowTileBytes) + warp * 128 + lane;
#pragma unroll 1
  for (ManyTiles tiles; !tiles.done(a.walk); tiles.next()) {
    const TileCoord coord(a, tiles.tile);
    const float* scales = a.w_scale + int64_t{2 * coord.packed_tile(a) + warpgroup} * a.num_blocks;
    float next_scale = __ldg(scales);
    float sums[128] = {};
    MixedOperands values[kHalves];
    uint32_t multiplied = 0, in_front = 0;  // barriers that release stages of tokens: the last one's, and the one before
#pragma unroll 1
    for (int block = 0; block < a.num_blocks; ++block) {
      const MixedScale scale(next_scale);
      if (block + 1 < a.num_blocks) next_scale = __ldg(++scales);
      weights.wait_full();
      const uint4* const of_stage = units + weights.stage.index * (Shared::kWeightBytes / 16);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        ptx::wgmma_wait<1>();  // the products before last have read their operands
        if (lane < kManyCluster && in_front != 0) ptx::mbarrier_arrive_mapped(in_front);
        mixed_operands(values[half], of_stage + half * 64, scale);
        if (half == kHalves - 1) arrive_warp(weights.empty + weights.stage.index * 8, lane);
        const uint64_t rows = ptx::wgmma_descriptor(base + tokens.stage.index * Shared::kTokenBytes);
        tokens.wait_full();
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kChannels / 16; ++i) ptx::wgmma_bf16_rs(sums, values[half][i], ptx::offset(rows, 2 * i), true);
        ptx::wgmma_commit();
        in_front = multiplied;
        multiplied = arrive_at + tokens.stage.index * 8;
        tokens.next();
      }
      weights.next();
    }
    ptx::wgmma_wait<0>();
    if (lane < kManyCluster) {
      ptx::mbarrier_arrive_mapped(in_front);
      ptx::mbarrier_arrive_mapped(multiplied);
    }
    store_sums(y, sums, base + Shared::kOut + warpgroup * 2 * Shared::kOutBytes, warpgroup, coord);
  }
  if (thread % 128 == 0) ptx::bulk_store_wait();
}

__global__ void __cluster_dims__(kManyCluster, 1, 1) __launch_bounds__(kMixedManyThreads, 1)
    many_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y, const __grid_constant__ MixedManyArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = ptx::shared_address(shared);
  const TokenRing tokens(base + Shared::kBarriers);
  const WeightRing weights(base + Shared::kBarriers + Shared::kTokenStages * 16);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&x);
    ptx::prefetch_tensor_map(&y);
#pragma unroll
    for (int i = 0; i < Shared::kTokenStages; ++i) {
      ptx::mbarrier_init(tokens.full + i * 8, 1);
      ptx::mbarrier_init(tokens.empty + i * 8, 8 * kManyCluster);  // the warps that multiply, of both CTAs
    }
#pragma unroll
    for (int i = 0; i < Shared::kWeightStages; ++i) {
      ptx::mbarrier_init(weights.full + i * 8, 1);
      ptx::mbarrier_init(weights.empty + i * 8, 8 * kWarpArrivals);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  if (threadIdx.x < 128) {
    ptx::registers_shrink<40>();
    if (threadIdx.x == 0) {
      load_weights(a, base + Shared::kWeights, weights);
    } else if (threadIdx.x == 32) {
      ptx::wait_for_previous_kernel();
      ptx::launch_dependents();
      load_tokens(x, a, base, tokens);
    }
  } else {
    ptx::registers_grow<232>();
    multiply_tiles(y, a, shared, tokens, weights);
  }
  // No CTA exits while the other still arrives on its barriers.
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace

const void* mixed_many_kernel() { return reinterpret_cast<const void*>(&many_kernel); }

}  // namespace strata::cuda::sm90
