// y = x W^T for many tokens, e4m3 with scales of 1 x 128 and 128 x 128 blocks, y in bf16.
//
// Floor: 2 T N K flops at the machine's FP8 rate: wgmma takes 4096 products a cycle of an SM, 1024 cycles for a tile's block of 128
// channels. Shared memory is tighter: wgmma reads 96 KB of it for such a block and the copies write 48, which takes 1152 cycles at 128
// bytes each. Reached: 1230 to 1280 with a tile's beginning and end (docs/kernels/linear.md).
//
// Design: a CTA's tile is 128 tokens x 256 features. Each of two warpgroups multiplies 64 tokens by 128 features at a time, so that the
// sums (128 registers) and one product (64) fit. A product is scaled into the sums, one fused multiply-add per value, while the other
// warpgroup's wgmma runs; everything else happens while its own wgmma runs. The two CTAs of a cluster have neighbouring tokens. Each loads
// half of the features for both (multicast): 32 KB per CTA and 128 channels from L2 for 4 million products. Clusters walk bands of feature
// tiles, so that what all of them read at a time is about square. Half of a tile's features are stored during its last product, the other
// half during the next tile's first. Features come in groups with their own channels and columns (grouped_linear).
#include <cuda.h>

#include "backends/cuda/device/pipeline_state.cuh"
#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/linear/sm90/many/config.h"
#include "backends/cuda/linear/sm90/tile_walk.cuh"
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

namespace strata::cuda::sm90 {
namespace {

// By one thread: loads the operands of all tiles, as soon as both CTAs have read a stage's previous contents. Pointers are incremented:
// nothing is computed between an empty stage and its copies.
__device__ inline void load_operands(const CUtensorMap& x, const CUtensorMap& w, const ManyArgs& a, uint32_t shared, uint32_t full,
                                     uint32_t empty) {
  constexpr uint16_t kBoth = (1u << kManyCluster) - 1;
  constexpr int kHalf = kManyFeatures / kManyCluster;
  const int first = static_cast<int>(ptx::cluster_rank()) * kHalf;
  PipelineState<kManyStages> stage;
  for (ManyTiles tiles; !tiles.done(a.walk); tiles.next()) {
    const ManyTileCoord coord(a.walk, tiles.tile, static_cast<int>(ptx::cluster_rank()));
    const int first_row = coord.group * a.num_features, first_channel = coord.group * a.x_group_stride;
    const uint4 in_y = make_uint4(coord.token, coord.group * a.y_group_stride + coord.feature, a.num_features - coord.feature, 0);
    const float* x_scale = a.x_scale + int64_t{coord.group} * a.num_blocks * a.x_scale_stride + coord.token;
    const auto weight_scale = [&](int feature) {
      return a.w_scale + (first_row + min(feature, a.num_features - 1)) / a.weight_block_rows * a.w_scale_stride;
    };
    const float *left = weight_scale(coord.feature), *right = weight_scale(coord.feature + kManyFeatures / 2);
#pragma unroll 1
    for (int channel = 0; channel < a.num_blocks * kManyBlock; channel += kManyBlock) {
      const uint32_t barrier = full + stage.index * 8, to = shared + stage.index * ManyShared::kStageBytes;
      ptx::mbarrier_wait(empty + stage.index * 8, stage.parity ^ 1);
      if (channel == 0) ptx::st_shared(shared + ManyShared::kCoords + stage.index * 16, in_y);
      ptx::mbarrier_arrive_expect_tx(barrier, ManyShared::kStageBytes + ManyShared::kScaleBytes);
      ptx::tma_load_2d_multicast(to + ManyShared::kTokenBytes + first * kManyBlock, &w, channel, first_row + coord.feature + first, barrier,
                                 kBoth);
      ptx::tma_load_2d(to, &x, first_channel + channel, coord.token, barrier);
      ptx::bulk_load(shared + ManyShared::kScales + stage.index * ManyShared::kScaleBytes, x_scale, ManyShared::kScaleBytes, barrier);
      ptx::cp_async_4(shared + ManyShared::kWeightScales + stage.index * 8, left++);
      ptx::cp_async_4(shared + ManyShared::kWeightScales + stage.index * 8 + 4, right++);
      ptx::cp_async_arrive(barrier);
      x_scale += a.x_scale_stride;
      stage.next();
    }
  }
}

// Stores this warp's 16 tokens of half of a tile's features as bf16 to shared memory, and from there to `columns` columns of y, rounded up
// to 64. The other half may still be in flight to y.
__device__ __forceinline__ void store_half(const CUtensorMap& y, const float (&sums)[64], uint32_t out, int token, int column,
                                           int columns) {
  constexpr int kFeatureGroupBytes = 16 * 128;  // bytes of 64 features
  const int lane = threadIdx.x % 32, row = lane % 16;
  if (lane == 0) ptx::bulk_store_wait_read<1>();  // this half of the previous tile has been stored
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 16; j += 2) {
    const float* const s = sums + 4 * j;
    const int unit = (j + lane / 16) % 8;
    ptx::stmatrix_x4(out + j / 8 * kFeatureGroupBytes + row * 128 + (unit ^ (row % 8)) * 16, ptx::cvt_bf16x2(s[0], s[1]),
                     ptx::cvt_bf16x2(s[2], s[3]), ptx::cvt_bf16x2(s[4], s[5]), ptx::cvt_bf16x2(s[6], s[7]));
  }
  ptx::fence_proxy_async();
  __syncwarp();
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (64 * i < columns) ptx::tma_store_2d(&y, out + i * kFeatureGroupBytes, column + 64 * i, token);
    }
    ptx::bulk_store_commit();
  }
}

// A warp's share of its warpgroup's products: 16 tokens by all features of a tile. Between two products of a warpgroup only its sums are
// updated, because the tensor cores idle when both warpgroups do that. Everything else happens while a product runs: waiting for the next
// stage, reading its scales and tile position, and storing the completed half of the features.
class ManyMultiplier {
 public:
  __device__ __forceinline__ ManyMultiplier(const CUtensorMap& y, const ManyArgs& a, uint32_t shared, uint32_t full, uint32_t empty)
      : y_(y), a_(a), warp_(__shfl_sync(~0u, threadIdx.x / 32, 0) - 4), lane_(threadIdx.x % 32), full_(full), empty_(empty) {
    arrive_at_ = ptx::map_shared(empty, lane_ % kManyCluster);
    token_scales_ = shared + ManyShared::kScales + (16 * warp_ + lane_ / 4) * 4;
    weight_scales_ = shared + ManyShared::kWeightScales;
    coords_ = shared + ManyShared::kCoords;
    out_ = shared + ManyShared::kOut + warp_ * (16 * kManyFeatures * 2);
    // Warp-uniform, also for the compiler, so that values derived from it are uniform too.
    first_tokens_ = __shfl_sync(~0u, static_cast<uint32_t>(ptx::wgmma_descriptor(shared + warp_ / 4 * (64 * kManyBlock))), 0);
    first_features_ = __shfl_sync(~0u, static_cast<uint32_t>(ptx::wgmma_descriptor(shared + ManyShared::kTokenBytes)), 0);
  }

  __device__ __forceinline__ void multiply_tiles() {
    ManyTiles tiles;
    if (tiles.done(a_.walk)) return;
    open_stage();
    open_tile();
    bool first = true;
    do {
      tiles.next();
      const bool more = !tiles.done(a_.walk);
      if (a_.num_blocks == 1) {
        multiply_block<true, true>(first, more);
      } else {
        multiply_block<true, false>(first, true);
#pragma unroll 1
        for (int block = 2; block < a_.num_blocks; ++block) multiply_block<false, false>(first, true);
        multiply_block<false, true>(first, more);
      }
      first = false;
    } while (!tiles.done(a_.walk));
    store<1>(coord_);
    if (lane_ == 0) ptx::bulk_store_wait();
  }

 private:
  // Waits for the current stage, and reads the scales of its products.
  __device__ __forceinline__ void open_stage() {
    tokens_ = first_tokens_ + stage_.index * (ManyShared::kStageBytes / 16);
    features_ = first_features_ + stage_.index * (ManyShared::kStageBytes / 16);
    ptx::mbarrier_wait(full_ + stage_.index * 8, stage_.parity);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      token_scale_[i] = ptx::ld_shared_f32(token_scales_ + stage_.index * ManyShared::kScaleBytes + i * 32);
      weight_scale_[i] = ptx::ld_shared_f32(weight_scales_ + stage_.index * 8 + i * 4);
    }
  }

  // Position in y of the tile that begins with the current stage: tokens, columns, and the number of columns from there on.
  __device__ __forceinline__ void open_tile() { next_coord_ = ptx::ld_shared(coords_ + stage_.index * 16); }

  template <int kHalf>
  __device__ __forceinline__ void store(const uint4& coord) {
    constexpr int kFirst = kHalf * (kManyFeatures / 2);
    store_half(y_, sums_[kHalf], out_ + kFirst * 32, static_cast<int>(coord.x) + 16 * warp_, static_cast<int>(coord.y) + kFirst,
               static_cast<int>(coord.z) - kFirst);
  }

  // One block of channels of a tile. The first block stores what remains of the previous tile (except `first`); the last block stores what
  // is complete of this tile. `more`: another stage follows.
  template <bool kFirst, bool kLast>
  __device__ __forceinline__ void multiply_block(bool first, bool more) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float products[64];
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i)  // 32 channels each
        ptx::wgmma_e4m3(products, descriptor(tokens_ + 2 * i), descriptor(features_ + half * (128 * kManyBlock / 16) + 2 * i), i > 0);
      ptx::wgmma_commit();
      const float scales[] = {token_scale_[0] * weight_scale_[half], token_scale_[1] * weight_scale_[half]};
      if (kFirst && half == 0) {
        if (!first) store<1>(coord_);
        coord_ = next_coord_;
      }
      if (kLast && half == 1) store<0>(coord_);
      const uint32_t used = stage_.index * 8;
      if (half == 1) {
        stage_.next();
        if (more) {
          open_stage();
          if (kLast) open_tile();
        }
      }
      ptx::wgmma_wait<0>();
      if (half == 1) arrive_in_cluster<kManyCluster>(empty_ + used, arrive_at_ + used, lane_);
#pragma unroll
      for (int i = 0; i < 64; ++i) sums_[half][i] = scales[i / 2 % 2] * products[i] + (kFirst ? 0.0f : sums_[half][i]);
    }
  }

  // From its lower half; the upper half is the same for all operands.
  static __device__ __forceinline__ uint64_t descriptor(uint32_t low) { return ptx::wgmma_descriptor(0) >> 32 << 32 | low; }

  const CUtensorMap& y_;
  const ManyArgs& a_;
  const int warp_, lane_;
  uint32_t full_, empty_, arrive_at_, token_scales_, weight_scales_, coords_, out_;  // shared addresses, of the first stage
  uint32_t first_tokens_, first_features_, tokens_, features_;  // lower halves of descriptors: of the first and of the current stage
  PipelineState<kManyStages> stage_;
  uint4 coord_, next_coord_;
  float token_scale_[2], weight_scale_[2];  // of this thread's tokens, rows l / 4 and 8 more of the warp; of each half of the features
  float sums_[2][64];
};

__global__ void __cluster_dims__(kManyCluster, 1, 1) __launch_bounds__(kManyThreads, 1)
    many_tokens_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap y,
                       const __grid_constant__ ManyArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t full = ptx::shared_address(shared + ManyShared::kBarriers), empty = full + kManyStages * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kManyStages; ++i) {
      ptx::mbarrier_init(full + i * 8, 2);                                  // the copies, and those of the weights' scales
      ptx::mbarrier_init(empty + i * 8, 8 * kManyCluster * kWarpArrivals);  // the warps that multiply, of both CTAs
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
    ManyMultiplier(y, a, ptx::shared_address(shared), full, empty).multiply_tiles();
  }
  // No CTA exits while the other still arrives on its barriers.
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace

const void* linear_many_kernel() { return reinterpret_cast<const void*>(&many_tokens_kernel); }

}  // namespace strata::cuda::sm90
