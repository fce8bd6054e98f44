// The value roles: two warpgroups accumulate weighted values, 256 dimensions each, and write the output.
#pragma once

#include "backends/cuda/device/transpose_quad.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/mqa_engine/cluster_combine.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/keep_in_l2.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/store_once.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma_bf16.cuh"
#include "formats/ue8m0.h"

namespace strata::cuda::sparse_prefill {

// Named barriers of the two warpgroups.
inline constexpr uint32_t kValuesGroups = 2;

template <class Problem>
class Values {
  using S = typename Problem::Shape;
  using Args = typename Problem::Args;
  using Item = typename Problem::Item;
  using Shared = SharedMemory<typename Problem::Shape>;
  using Sums = float[2][64];  // of 128 dimensions each: a wider instruction does not fit the registers of a CTA of 512 threads

 public:
  __device__ __forceinline__ Values(const Args& args, Shared& memory, int half) : half(half), a(args), shared(memory) {}
  // Continues after the items of another problem.
  template <class Before>
  __device__ __forceinline__ Values(const Args& args, const Before& before)
      : half(before.half), a(args), shared(before.shared), tile(before.tile), weights(before.weights), items(before.items) {}

  __device__ __forceinline__ void run() {
    ItemScheduler<Problem> scheduler;
    for (int32_t i = scheduler.first(shared), end = scheduler.end(a, shared); i < end; i = scheduler.next(a, shared, i)) {
      const Item item = scheduler.item(a, shared, i);
      if constexpr (Problem::kSplit) {
        if (item.tiles == 0) continue;
      }
      tile.start_item();
      if constexpr (Problem::kSharesRows) rows_stay = !item.last_of_rows();
      for (int t = 0; t < S::kQueryTiles; ++t) tile.advance_queries();
      Sums sums;
      add_tile(sums, false, item.tiles == 1);
      for (int32_t t = 1; t < item.tiles; ++t) {
        release_weights();
        release_tile(S::kTileSlots > 1 ? 1 : 0);
        add_tile(sums, true, t + 1 == item.tiles);
      }
      wait(shared.normalizer_full[items.index], items.parity);
      const float first = shared.normalizer[items.index][accumulator_row()], second = shared.normalizer[items.index][accumulator_row() + 8];
      items.next();
      release_weights();  // Not before: the logits role rewrites the normalizer two tiles later at the earliest.
      // Where items share rows, the next token's rows are waited for: their stage must not wait for the output.
      if constexpr (Problem::kMappedOut && !Problem::kSharesRows) {
        if (a.out_aligned) {
          store_staged(item, sums, first, second);
          release_tile(0);
          continue;
        }
      }
      release_tile(0);
      if constexpr (Problem::kInCluster) {
        if (shared.plan.combines) {  // the CTA's one item
          ptx::launch_dependents();
          keep_split(sums, first, second);
          combine_in_cluster<Problem>(a, shared, item);
          return;
        }
      }
      if constexpr (Problem::kSplit) {
        if (Problem::is_split(a, item)) {
          if (scheduler.next(a, shared, i) >= end) ptx::launch_dependents();  // the combine kernel
          store_split(item, sums, first, second);
          continue;
        }
      }
      if constexpr (!Problem::kOnlySplits) store(item, sums, first, second);
    }
    if constexpr (Problem::kKeepsRows) release_rows();
  }

 private:
  template <class>
  friend class Values;

  // Resets the L2 priority of a CTA's share of the rows that were kept: later data must find room there.
  __device__ __forceinline__ void release_rows() const {
    if (a.keeping_items == 0) return;
    constexpr uint32_t kLines = S::kChunks * kChunkDims * 2 / 128, kThreadsHere = 2 * kWarpgroup;
    const uint32_t lines = a.num_rows * kLines, thread = threadIdx.x - kWarpgroup;
#pragma unroll 1
    for (uint32_t i = blockIdx.x * kThreadsHere + thread; i < lines; i += gridDim.x * kThreadsHere) {
      ptx::evict_normal(a.kv + static_cast<int64_t>(i / kLines) * a.kv_stride + i % kLines * kChunkDims);
    }
  }

  // Scales head row (r = 0) or row + 8. A warp has eight such heads; it skips these products when the maxima of all eight are unchanged.
  static __device__ __forceinline__ void scale_head(Sums& sums, int r, float factor) {
    if (factor == 1.0f) return;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      float* s = &sums[j / 16][4 * (j % 16) + 2 * r];
      s[0] *= factor, s[1] *= factor;
    }
  }

  // cp.async and stores wrote what wgmma reads here: the logits role has seen both and fenced before it signalled the weights. last: no
  // slot of the tile is released yet.
  // sums = (more ? rescaled sums : 0) + weights * values of this half
  __device__ __forceinline__ void add_tile(Sums& sums, bool more, bool last) {
    wait(shared.rescale_full[weights.index], weights.parity);
    if (more) {
      const float first = shared.rescale[weights.index][accumulator_row()], second = shared.rescale[weights.index][accumulator_row() + 8];
      scale_head(sums, 0, first);
      scale_head(sums, 1, second);
      __syncwarp();
    }
    wait(shared.weights_full[weights.index], weights.parity);
    ptx::wgmma_hold(sums[0]);
    ptx::wgmma_hold(sums[1]);
    ptx::wgmma_fence();
    const uint64_t p = ptx::offset(first_weights, weights_stage() * (kHeadChunkBytes / 16));
    uint64_t v[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      v[j] = ptx::offset(first_values, tile.chunk_offset(S::kValueChunks / 2 * half + 2 * j));
    }
    if constexpr (S::kTileSlots == 1) {
#pragma unroll
      for (int i = 0; i < S::kRows / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) ptx::wgmma_bf16_mn(sums[j], ptx::offset(p, 2 * i), ptx::offset(v[j], 2048 * i / 16), more || i > 0);
      }
      ptx::wgmma_commit();
    } else {  // slot by slot: the first is released while the second is added
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < S::kRows / 16; ++i)
          ptx::wgmma_bf16_mn(sums[j], ptx::offset(p, 2 * i), ptx::offset(v[j], 2048 * i / 16), more || i > 0);
        ptx::wgmma_commit();
      }
      ptx::wgmma_wait<1>();
      if (!last) release_slot(0);
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(sums[0]);
    ptx::wgmma_hold(sums[1]);
  }
  __device__ __forceinline__ uint32_t weights_stage() const { return S::kTail ? tile.stage : weights.index; }
  __device__ __forceinline__ void release_weights() {
    arrive_warp(shared.weights_empty[weights_stage()]);
    weights.next();
  }
  // Releases the i-th slot that this warpgroup reads.
  __device__ __forceinline__ void release_slot(int i) {
    if (!rows_stay) arrive_warp(shared.empty[tile.slot(S::kTileSlots == 1 ? 0 : S::kTileSlots / 2 * half + i)]);
  }
  // Releases all slots but the first `released`, and advances to the next tile.
  __device__ __forceinline__ void release_tile(int released) {
#pragma unroll
    for (int i = 0; i < (S::kTileSlots + 1) / 2; ++i) {
      if (i >= released) release_slot(i);
    }
    tile.advance(rows_stay);
  }

  // Stores through the stage of the item's last tile, whose values have been added. Each warp writes its 16 heads there in chunks of 64
  // dimensions, swizzled: a box that the copy engine stores while the next item runs.
  __device__ __forceinline__ void store_staged(const Item& item, const Sums& sums, float first, float second) const {
    constexpr int kStoredChunkBytes = kStoredHeads * 128;
    static_assert(kStoredChunks * kStoredChunkBytes == S::kChunkBytes);
    ptx::barrier_sync(kValuesGroups + half, kWarpgroup);  // the products of all four warps have finished
    const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
    const uint32_t box = ptx::shared_address(tile.chunk(shared, kStoredChunks * half + warp));
#pragma unroll
    for (int c = 0; c < kStoredChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* s = &sums[c / 2][32 * (c % 2) + 8 * i];
        ptx::stmatrix_x4(box + c * kStoredChunkBytes + unit_offset(lane % 16, 2 * i + lane / 16),
                         ptx::cvt_bf16x2(s[0] * first, s[1] * first), ptx::cvt_bf16x2(s[2] * second, s[3] * second),
                         ptx::cvt_bf16x2(s[4] * first, s[5] * first), ptx::cvt_bf16x2(s[6] * second, s[7] * second));
      }
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      ptx::tma_store_groups(&a.out_map, box, item.first_head + kStoredHeads * warp, kStoredChunks * half, item.token,
                            ptx::evict_first_policy());
      ptx::bulk_store_commit();
      ptx::bulk_store_wait_read();
    }
  }

  // Stores directly from the accumulators, heads row (r = 0) or row + 8 as pairs. Each lane exchanges pairs of a head's dimensions into
  // eight consecutive ones, 64 bytes per quad. put(i, v): the lane's i-th eight, 32 dimensions after the last.
  template <class Pair, class Put>
  static __device__ __forceinline__ void store_head(const Sums& sums, int r, const Pair& pair, const Put& put) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* s = &sums[i / 4][16 * (i % 4) + 4 * j + 2 * r];
        w[j] = pair(s[0], s[1]);
      }
      transpose_quad(w);
      put(i, w);
    }
  }
  __device__ __forceinline__ void store(const Item& item, const Sums& sums, float first, float second) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = item.first_head + accumulator_row() + 8 * r;
      const bool exists = Problem::exists(a, item, head);
      const float factor = r == 0 ? first : second;
      uint16_t* target = Problem::out(a, item, head) + half * (kValueDim / 2) + 8 * (threadIdx.x % 4);
      const auto pair = [factor](float x, float y) { return ptx::cvt_bf16x2(x * factor, y * factor); };
      store_head(sums, r, pair, [&](int i, const uint32_t(&w)[4]) {
        if (!exists) return;
        if (a.out_aligned) {
          const uint4 v = {w[0], w[1], w[2], w[3]};
          if constexpr (Problem::kMappedOut) {
            ptx::st_global(target + 32 * i, v, ptx::evict_first_policy());
          } else {
            *reinterpret_cast<uint4*>(target + 32 * i) = v;
          }
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j) target[32 * i + j] = static_cast<uint16_t>(w[j / 2] >> (16 * (j % 2)));
        }
      });
    }
  }

  // Exponent for a split's sums of heads row (r = 0) or row + 8 as fp16: times 2^(14 - exponent), the largest is in [2^14, 2^15).
  static __device__ __forceinline__ int split_exponent(const Sums& sums, int r) {
    float largest = 0.0f;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const float* s = &sums[j / 16][4 * (j % 16) + 2 * r];
      largest = fmaxf(largest, fmaxf(fabsf(s[0]), fabsf(s[1])));
    }
    largest = lanes_max<4>(largest);
    return max(static_cast<int>(__float_as_uint(largest) >> 23) - 127, -100);
  }

  // Keeps the split's result to be combined by the cluster.
  __device__ __forceinline__ void keep_split(const Sums& sums, float first, float second) const {
    // The rows and the rescale factors, whose memory it takes, are no longer read.
    ptx::barrier_sync(kValuesGroups + 2, 2 * kWarpgroup);
    const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
    const int exponent[2] = {split_exponent(sums, 0), split_exponent(sums, 1)};
    const float shrink[2] = {pow2(14 - exponent[0]), pow2(14 - exponent[1])};
    const uint32_t target = split_sums(shared) + half * (kSplitBoxes / 2) * kHeadChunkBytes;
#pragma unroll
    for (int c = 0; c < kSplitBoxes / 2; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* s = &sums[c / 2][32 * (c % 2) + 8 * i];
        ptx::stmatrix_x4(target + c * kHeadChunkBytes + unit_offset(16 * warp + lane % 16, 2 * i + lane / 16),
                         ptx::cvt_f16x2(s[0] * shrink[0], s[1] * shrink[0]), ptx::cvt_f16x2(s[2] * shrink[1], s[3] * shrink[1]),
                         ptx::cvt_f16x2(s[4] * shrink[0], s[5] * shrink[0]), ptx::cvt_f16x2(s[6] * shrink[1], s[7] * shrink[1]));
      }
    }
    if (lane % 4 == 0) {
      split_factors(shared, half)[accumulator_row()] = pow2(exponent[0] - 14) * first;
      split_factors(shared, half)[accumulator_row() + 8] = pow2(exponent[1] - 14) * second;
    }
  }

  // Stores the split's result to be combined by another kernel, with a power of two for each half of a head.
  __device__ __forceinline__ void store_split(const Item& item, const Sums& sums, float first, float second) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = item.first_head + accumulator_row() + 8 * r, exponent = split_exponent(sums, r);
      const float shrink = pow2(14 - exponent);
      const auto pair = [shrink](float x, float y) { return ptx::cvt_f16x2(x * shrink, y * shrink); };
      const bool exists = Problem::exists(a, item, head);
      uint4* target = reinterpret_cast<uint4*>(Problem::split_out(a, item, head) + half * (kValueDim / 2)) + threadIdx.x % 4;
      store_head(sums, r, pair, [&](int i, const uint32_t(&w)[4]) {
        if (exists) target[4 * i] = {w[0], w[1], w[2], w[3]};
      });
      if (exists && threadIdx.x % 4 == 0) {
        Problem::split_factor(a, item, head, half) = pow2(exponent - 14) * (r == 0 ? first : second);
      }
    }
  }

  const int half;  // of the dimensions. Not a template argument: shared code for both halves takes less of the instruction cache
  const Args& a;
  Shared& shared;
  const uint64_t first_values = ptx::wgmma_descriptor_mn(ptx::shared_address(shared.k), S::kChunkBytes);
  const uint64_t first_weights = ptx::wgmma_descriptor(ptx::shared_address(shared.weights));
  TilePosition<Problem> tile;
  bool rows_stay = false;  // for the next item
  PipelineState<S::kWeightTiles> weights;
  PipelineState<2> items;
};

}  // namespace strata::cuda::sparse_prefill
