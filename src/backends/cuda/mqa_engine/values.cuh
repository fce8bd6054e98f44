// The value roles: two warpgroups add up weighted values, 256 lanes each, and write the output.
#pragma once

#include "backends/cuda/device/transpose_quad.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/mqa_engine/cluster_merge.cuh"
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
  using Sums = float[2][64];  // of 128 lanes each: an instruction with more does not fit the registers of a block of 512 threads

 public:
  __device__ __forceinline__ Values(const Args& args, Shared& memory, int half) : half(half), a(args), shared(memory) {}
  // Goes on where other items ended.
  template <class Before>
  __device__ __forceinline__ Values(const Args& args, const Before& before)
      : half(before.half), a(args), shared(before.shared), tile(before.tile), weights(before.weights), items(before.items) {}

  __device__ __forceinline__ void run() {
    Items<Problem> order;
    for (int32_t i = order.first(shared), end = order.end(a, shared); i < end; i = order.next(a, shared, i)) {
      const Item item = order.item(a, shared, i);
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
        release_tile(S::kParts > 1 ? 1 : 0);
        add_tile(sums, true, t + 1 == item.tiles);
      }
      wait(shared.normalizer_full[items.index], items.parity);
      const float first = shared.normalizer[items.index][accumulator_row()], second = shared.normalizer[items.index][accumulator_row() + 8];
      items.next();
      release_weights();  // Not before: the logits role writes normalizers here again two tiles on at the earliest.
      // Where items share rows, the next token's are waited for: their stage must not wait for the output.
      if constexpr (Problem::kMappedOut && !Problem::kSharesRows) {
        if (a.out_aligned) {
          store_staged(item, sums, first, second);
          release_tile(0);
          continue;
        }
      }
      release_tile(0);
      if constexpr (Problem::kInCluster) {
        if (shared.plan.merges) {  // the block's one item
          ptx::launch_dependents();
          keep_part(sums, first, second);
          merge_in_cluster<Problem>(a, shared, item);
          return;
        }
      }
      if constexpr (Problem::kSplit) {
        if (Problem::is_part(a, item)) {
          if (order.next(a, shared, i) >= end) ptx::launch_dependents();  // the merge
          store_part(item, sums, first, second);
          continue;
        }
      }
      if constexpr (!Problem::kOnlyParts) store(item, sums, first, second);
    }
    if constexpr (Problem::kKeepsRows) release_rows();
  }

 private:
  template <class>
  friend class Values;

  // A block's share of those that were made the last to leave L2: others must find room there when this is over.
  __device__ __forceinline__ void release_rows() const {
    if (a.keeping_items == 0) return;
    constexpr uint32_t kLines = S::kChunks * kChunkLanes * 2 / 128, kThreadsHere = 2 * kWarpgroup;
    const uint32_t lines = a.num_rows * kLines, thread = threadIdx.x - kWarpgroup;
#pragma unroll 1
    for (uint32_t i = blockIdx.x * kThreadsHere + thread; i < lines; i += gridDim.x * kThreadsHere) {
      ptx::evict_as_others(a.kv + static_cast<int64_t>(i / kLines) * a.kv_stride + i % kLines * kChunkLanes);
    }
  }

  // Of head row (r = 0) or row + 8. A warp has eight heads there: it skips these products when the maxima of all eight stay.
  static __device__ __forceinline__ void scale_head(Sums& sums, int r, float factor) {
    if (factor == 1.0f) return;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      float* s = &sums[j / 16][4 * (j % 16) + 2 * r];
      s[0] *= factor, s[1] *= factor;
    }
  }

  // What wgmma reads here cp.async and stores have written: the logits role has seen both and fenced before it handed the weights over.
  // last: nothing of the tile is given back yet.
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
    const uint64_t p = ptx::behind(first_weights, weights_place() * (kHeadChunkBytes / 16));
    uint64_t v[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      v[j] = ptx::behind(first_values, tile.chunk_place(S::kValueChunks / 2 * half + 2 * j));
    }
    if constexpr (S::kParts == 1) {
#pragma unroll
      for (int i = 0; i < S::kRows / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) ptx::wgmma_bf16_mn(sums[j], ptx::behind(p, 2 * i), ptx::behind(v[j], 2048 * i / 16), more || i > 0);
      }
      ptx::wgmma_commit();
    } else {  // part by part: the first is given back while the second is added
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < S::kRows / 16; ++i)
          ptx::wgmma_bf16_mn(sums[j], ptx::behind(p, 2 * i), ptx::behind(v[j], 2048 * i / 16), more || i > 0);
        ptx::wgmma_commit();
      }
      ptx::wgmma_wait<1>();
      if (!last) release_part(0);
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(sums[0]);
    ptx::wgmma_hold(sums[1]);
  }
  __device__ __forceinline__ uint32_t weights_place() const { return S::kTail ? tile.at : weights.index; }
  __device__ __forceinline__ void release_weights() {
    arrive_warp(shared.weights_empty[weights_place()]);
    weights.next();
  }
  // The i-th part that this warpgroup reads.
  __device__ __forceinline__ void release_part(int i) {
    if (!rows_stay) arrive_warp(shared.empty[tile.slot(S::kParts == 1 ? 0 : S::kParts / 2 * half + i)]);
  }
  // All but the first `released` parts, and on to the next tile.
  __device__ __forceinline__ void release_tile(int released) {
#pragma unroll
    for (int i = 0; i < (S::kParts + 1) / 2; ++i) {
      if (i >= released) release_part(i);
    }
    tile.advance(rows_stay);
  }

  // Through the stage of the item's last tile, whose values have been added: each warp puts its 16 heads there in pieces of 64
  // lanes, swizzled, which are a box that the copy engine writes out while the next item is under way.
  __device__ __forceinline__ void store_staged(const Item& item, const Sums& sums, float first, float second) const {
    constexpr int kChunkPart = kStoredHeads * 128;
    static_assert(kStoredChunks * kChunkPart == S::kChunkBytes);
    ptx::barrier_sync(kValuesGroups + half, kWarpgroup);  // the products of all four warps are done
    const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
    const uint32_t box = ptx::shared_address(tile.chunk(shared, kStoredChunks * half + warp));
#pragma unroll
    for (int c = 0; c < kStoredChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* s = &sums[c / 2][32 * (c % 2) + 8 * i];
        ptx::stmatrix_x4(box + c * kChunkPart + unit_offset(lane % 16, 2 * i + lane / 16), ptx::cvt_bf16x2(s[0] * first, s[1] * first),
                         ptx::cvt_bf16x2(s[2] * second, s[3] * second), ptx::cvt_bf16x2(s[4] * first, s[5] * first),
                         ptx::cvt_bf16x2(s[6] * second, s[7] * second));
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

  // Straight from the accumulators, of heads row (r = 0) or row + 8 as pairs: each lane turns pairs of lanes of a head into eight
  // consecutive ones, 64 bytes a quad. put(i, v): the lane's i-th eight, 32 lanes on from the last.
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

  // A part's sums of heads row (r = 0) or row + 8 as fp16: times 2^(14 - exponent), the largest is at least 2^14 and less than 2^15.
  static __device__ __forceinline__ int part_exponent(const Sums& sums, int r) {
    float largest = 0.0f;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const float* s = &sums[j / 16][4 * (j % 16) + 2 * r];
      largest = fmaxf(largest, fmaxf(fabsf(s[0]), fabsf(s[1])));
    }
    largest = lanes_max<4>(largest);
    return max(static_cast<int>(__float_as_uint(largest) >> 23) - 127, -100);
  }

  // To be merged by the cluster.
  __device__ __forceinline__ void keep_part(const Sums& sums, float first, float second) const {
    // Nobody reads rows any more, whose place the part takes, nor what sums are rescaled by.
    ptx::barrier_sync(kValuesGroups + 2, 2 * kWarpgroup);
    const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
    const int exponent[2] = {part_exponent(sums, 0), part_exponent(sums, 1)};
    const float shrink[2] = {pow2(14 - exponent[0]), pow2(14 - exponent[1])};
    const uint32_t part = part_sums(shared) + half * (kPartBoxes / 2) * kHeadChunkBytes;
#pragma unroll
    for (int c = 0; c < kPartBoxes / 2; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* s = &sums[c / 2][32 * (c % 2) + 8 * i];
        ptx::stmatrix_x4(part + c * kHeadChunkBytes + unit_offset(16 * warp + lane % 16, 2 * i + lane / 16),
                         ptx::cvt_f16x2(s[0] * shrink[0], s[1] * shrink[0]), ptx::cvt_f16x2(s[2] * shrink[1], s[3] * shrink[1]),
                         ptx::cvt_f16x2(s[4] * shrink[0], s[5] * shrink[0]), ptx::cvt_f16x2(s[6] * shrink[1], s[7] * shrink[1]));
      }
    }
    if (lane % 4 == 0) {
      part_factors(shared, half)[accumulator_row()] = pow2(exponent[0] - 14) * first;
      part_factors(shared, half)[accumulator_row() + 8] = pow2(exponent[1] - 14) * second;
    }
  }

  // To be merged by another kernel: with a power of two of its own for each head's half.
  __device__ __forceinline__ void store_part(const Item& item, const Sums& sums, float first, float second) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = item.first_head + accumulator_row() + 8 * r, exponent = part_exponent(sums, r);
      const float shrink = pow2(14 - exponent);
      const auto pair = [shrink](float x, float y) { return ptx::cvt_f16x2(x * shrink, y * shrink); };
      const bool exists = Problem::exists(a, item, head);
      uint4* target = reinterpret_cast<uint4*>(Problem::part(a, item, head) + half * (kValueDim / 2)) + threadIdx.x % 4;
      store_head(sums, r, pair, [&](int i, const uint32_t(&w)[4]) {
        if (exists) target[4 * i] = {w[0], w[1], w[2], w[3]};
      });
      if (exists && threadIdx.x % 4 == 0) {
        Problem::part_factor(a, item, head, half) = pow2(exponent - 14) * (r == 0 ? first : second);
      }
    }
  }

  const int half;  // of the lanes. Not of the type: one code for both is less to bring to the instruction cache for every item
  const Args& a;
  Shared& shared;
  const uint64_t first_values = ptx::wgmma_descriptor_mn(ptx::shared_address(shared.k), S::kChunkBytes);
  const uint64_t first_weights = ptx::wgmma_descriptor(ptx::shared_address(shared.weights));
  TilePosition<Problem> tile;
  bool rows_stay = false;  // for the next item
  Turn<S::kWeightTiles> weights;
  Turn<2> items;
};

}  // namespace strata::cuda::sparse_prefill
