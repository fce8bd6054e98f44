// y = x W^T for many tokens of bf16 and a weight of e4m3 codes, which become bf16 in registers.
//
// Floor: 2 T N K flops at the machine's bf16 rate: wgmma takes 2048 products a cycle of an SM, 2048 cycles for a tile's block of 128
// channels. Beside that, for each such block: wgmma reads 128 of the 256 KB that shared memory carries in that time, copies write 80, codes
// are read for 16; each of eight warps converts 2048 codes by 128 instructions, of the 2048 that its scheduler issues for two.
// Reached on an H200: see docs/kernels/20261123-mixed-linear.md.
//
// Design: a block's tile is 128 features, of which two warpgroups have 64 each, the M of wgmma, by 256 tokens, its N: with operands in
// registers an instruction takes some 7 cycles more than its products, whatever N. Sums (128 registers a thread) stay over all channels.
// Operands of 64 channels are converted while the tensor cores multiply the 64 before. Two blocks of a cluster take neighbouring features
// and the same tokens, of which each brings half for both (multicast). Two threads ask: for codes at once, for tokens when the kernel in
// front has ended. Clusters walk as those of linear_many do. Results go to y by the copy engine, 32 tokens of a warpgroup at a time.
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
#include "backends/cuda/ptx/wgmma_behind.cuh"
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
using CodeRing = Ring<Shared::kCodeStages>;

// Where this block's part of its cluster's tile begins.
struct Place {
  int token, group, feature;  // feature: of the group
  bool exists;                // a group's last tile may be the other block's alone: then this one multiplies features that are not stored
  __device__ Place(const MixedManyArgs& a, int tile) {
    const ManyPlace of_cluster(a.walk, tile);
    const int rank = static_cast<int>(ptx::cluster_rank()), first = of_cluster.feature + rank * kMixedTileRows;
    token = of_cluster.token;
    group = of_cluster.group;
    exists = first < a.n;
    feature = exists ? first : of_cluster.feature;
  }
  __device__ int packed_tile(const MixedManyArgs& a) const { return (group * a.n + feature) / kMixedTileRows; }
};

// One thread.
__device__ __forceinline__ void load_codes(const MixedManyArgs& a, uint32_t to, CodeRing ring) {
#pragma unroll 1
  for (ManyTiles tiles; !tiles.done(a.walk); tiles.next()) {
    const uint8_t* codes = a.codes + int64_t{Place(a, tiles.tile).packed_tile(a)} * a.num_blocks * Shared::kCodeBytes;
#pragma unroll 1
    for (int block = 0; block < a.num_blocks; ++block, codes += Shared::kCodeBytes, ring.next()) {
      ring.wait_empty();
      ptx::mbarrier_arrive_expect_tx(ring.full_now(), Shared::kCodeBytes);
      ptx::bulk_load(to + ring.stage.index * Shared::kCodeBytes, codes, Shared::kCodeBytes, ring.full_now());
    }
  }
}

// One thread, as both blocks have read what was in a stage before.
__device__ __forceinline__ void load_tokens(const CUtensorMap& x, const MixedManyArgs& a, uint32_t to, TokenRing ring) {
  constexpr int kOwnBytes = Shared::kTokenBytes / kManyCluster;
  const int rank = static_cast<int>(ptx::cluster_rank());
#pragma unroll 1
  for (ManyTiles tiles; !tiles.done(a.walk); tiles.next()) {
    const Place place(a, tiles.tile);
#pragma unroll 1
    for (int group = 0; group < a.num_blocks * kHalves; ++group, ring.next()) {
      ring.wait_empty();
      ptx::mbarrier_arrive_expect_tx(ring.full_now(), Shared::kTokenBytes);
      ptx::tma_load_groups_multicast(to + ring.stage.index * Shared::kTokenBytes + rank * kOwnBytes, &x, place.token + rank * kManyTokens,
                                     group, place.group, ring.full_now(), (1u << kManyCluster) - 1);
    }
  }
}

// A warpgroup's sums as bf16 to y, by way of its two places in shared memory.
__device__ __forceinline__ void store_sums(const CUtensorMap& y, const float (&sums)[128], uint32_t out, int warpgroup,
                                           const Place& place) {
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;
  const int matrix = lane / 8, row = lane % 8;  // of four that are stored at a time: eight features, the next; eight tokens, the next
  const uint32_t in_part = (matrix / 2 * 8 + row) * 128 + ((2 * warp + matrix % 2) ^ row) * 16;
#pragma unroll
  for (int first = 0; first < kMixedManyTokens; first += kMixedManyOutTokens) {
    const uint32_t to = out + first / kMixedManyOutTokens % 2 * Shared::kOutBytes;
    if (thread == 0) ptx::bulk_store_wait_read<1>();  // what was here has left
    ptx::barrier_sync(1 + warpgroup, 128);
#pragma unroll
    for (int token = 0; token < kMixedManyOutTokens; token += 16) {
      const float* const s = sums + (first + token) / 2;
      ptx::stmatrix_x4_trans(to + token * 128 + in_part, ptx::cvt_bf16x2(s[0], s[1]), ptx::cvt_bf16x2(s[2], s[3]),
                             ptx::cvt_bf16x2(s[4], s[5]), ptx::cvt_bf16x2(s[6], s[7]));
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(1 + warpgroup, 128);
    if (thread == 0) {
      if (place.exists) ptx::tma_store_3d(&y, to, place.feature + warpgroup * kMixedRows, place.token + first, place.group);
      ptx::bulk_store_commit();
    }
  }
}

// A warpgroup's part of its block's tiles.
__device__ __forceinline__ void multiply_tiles(const CUtensorMap& y, const MixedManyArgs& a, const uint8_t* shared, TokenRing tokens,
                                               CodeRing codes) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4;
  const int warpgroup = __shfl_sync(~0u, thread / 128 - 1, 0);
  const uint32_t base = ptx::shared_address(shared), arrive_at = ptx::map_shared(tokens.empty, lane % kManyCluster);
  const auto* const pieces = reinterpret_cast<const uint4*>(shared + Shared::kCodes + warpgroup * kMixedPartBytes) + warp * 128 + lane;
#pragma unroll 1
  for (ManyTiles tiles; !tiles.done(a.walk); tiles.next()) {
    const Place place(a, tiles.tile);
    const float* scales = a.w_scale + int64_t{2 * place.packed_tile(a) + warpgroup} * a.num_blocks;
    float next_scale = __ldg(scales);
    float sums[128] = {};
    MixedOperands values[kHalves];
    uint32_t multiplied = 0, in_front = 0;  // where stages of tokens are given back: the last one's, and that before it
#pragma unroll 1
    for (int block = 0; block < a.num_blocks; ++block) {
      const MixedScale scale(next_scale);
      if (block + 1 < a.num_blocks) next_scale = __ldg(++scales);
      codes.wait_full();
      const uint4* const of_stage = pieces + codes.stage.index * (Shared::kCodeBytes / 16);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        ptx::wgmma_wait<1>();  // the products before last have read their operands
        if (lane < kManyCluster && in_front != 0) ptx::mbarrier_arrive_mapped(in_front);
        mixed_operands(values[half], of_stage + half * 64, scale);
        if (half == kHalves - 1) arrive_warp(codes.empty + codes.stage.index * 8, lane);
        const uint64_t rows = ptx::wgmma_descriptor(base + tokens.stage.index * Shared::kTokenBytes);
        tokens.wait_full();
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kChannels / 16; ++i) ptx::wgmma_bf16_rs(sums, values[half][i], ptx::behind(rows, 2 * i), true);
        ptx::wgmma_commit();
        in_front = multiplied;
        multiplied = arrive_at + tokens.stage.index * 8;
        tokens.next();
      }
      codes.next();
    }
    ptx::wgmma_wait<0>();
    if (lane < kManyCluster) {
      ptx::mbarrier_arrive_mapped(in_front);
      ptx::mbarrier_arrive_mapped(multiplied);
    }
    store_sums(y, sums, base + Shared::kOut + warpgroup * 2 * Shared::kOutBytes, warpgroup, place);
  }
  if (thread % 128 == 0) ptx::bulk_store_wait();
}

__global__ void __cluster_dims__(kManyCluster, 1, 1) __launch_bounds__(kMixedManyThreads, 1)
    many_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y, const __grid_constant__ MixedManyArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = ptx::shared_address(shared);
  const TokenRing tokens(base + Shared::kBarriers);
  const CodeRing codes(base + Shared::kBarriers + Shared::kTokenStages * 16);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&x);
    ptx::prefetch_tensor_map(&y);
#pragma unroll
    for (int i = 0; i < Shared::kTokenStages; ++i) {
      ptx::mbarrier_init(tokens.full + i * 8, 1);
      ptx::mbarrier_init(tokens.empty + i * 8, 8 * kManyCluster);  // the warps that multiply, of both blocks
    }
#pragma unroll
    for (int i = 0; i < Shared::kCodeStages; ++i) {
      ptx::mbarrier_init(codes.full + i * 8, 1);
      ptx::mbarrier_init(codes.empty + i * 8, 8 * kWarpArrivals);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  if (threadIdx.x < 128) {
    ptx::registers_shrink<40>();
    if (threadIdx.x == 0) {
      load_codes(a, base + Shared::kCodes, codes);
    } else if (threadIdx.x == 32) {
      ptx::wait_for_previous_kernel();
      ptx::launch_dependents();
      load_tokens(x, a, base, tokens);
    }
  } else {
    ptx::registers_grow<232>();
    multiply_tiles(y, a, shared, tokens, codes);
  }
  // No block leaves while the other still arrives on its barriers.
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace

const void* mixed_many_kernel() { return reinterpret_cast<const void*>(&many_kernel); }

}  // namespace strata::cuda::sm90
