// Combines the two splits of a token's heads in a cluster of the CTAs that computed them. Each CTA combines half of the heads of both
// splits from distributed shared memory, so splits are neither written to memory nor read by another kernel. A split's result is fp16
// multiples of its factors. Clusters of two fill the SMs; clusters of four do not (30 at a time on an H200).
#pragma once

#include "backends/cuda/device/add_halves.cuh"
#include "backends/cuda/mqa_engine/pipeline.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/convert.cuh"

namespace strata::cuda::sparse_prefill {

inline constexpr int kClusterSplits = 2;

// Where a CTA with one item keeps that item's split once its rows are no longer needed. Heads by boxes of 64 dimensions, swizzled, replace
// rows. The factors of each half of the dimensions replace the rescale factors. lse in base 2 (-inf: no rows) replaces a second item's
// normalizers.
inline constexpr int kSplitBoxes = kValueDim / kChunkDims;
template <class Shared>
__device__ __forceinline__ uint32_t split_sums(Shared& shared) {
  static_assert(sizeof(shared.k) >= kSplitBoxes * kHeadChunkBytes);
  return ptx::shared_address(&shared.k);
}
template <class Shared>
__device__ __forceinline__ float* split_factors(Shared& shared, int half) {
  return shared.rescale[half];
}
template <class Shared>
__device__ __forceinline__ float* split_lse(Shared& shared) {
  return shared.normalizer[1];
}

// By the value warpgroups of both CTAs, whose rank is their split. A warp combines every 16th head, four at a time.
template <class Problem, class Shared>
__device__ __forceinline__ void combine_in_cluster(const typename Problem::Args& a, Shared& shared, const typename Problem::Item& item) {
  constexpr int kWarps = 2 * kWarpgroup / 32, kStep = kClusterSplits * kWarps, kHeads = kHeadTile / kStep;
  const int lane = threadIdx.x % 32, first = static_cast<int>(ptx::cluster_rank()) + kClusterSplits * (threadIdx.x / 32 % kWarps);
  ptx::cluster_arrive();
  ptx::cluster_wait();
  uint4 values[kHeads][kClusterSplits][2];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
#pragma unroll
    for (int p = 0; p < kClusterSplits; ++p) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t box = split_sums(shared) + (half * (kSplitBoxes / 2) + lane / 8) * kHeadChunkBytes;
        values[i][p][half] = ptx::load_cluster(ptx::map_shared(box + unit_offset(first + i * kStep, lane % 8), p));
      }
    }
  }
  // One lane per split of each head.
  const int split = lane % kClusterSplits, row = first + lane / kClusterSplits % kHeads * kStep, head = item.first_head + row;
  const auto of_split = [&](const float* p) { return ptx::load_cluster_f32(ptx::map_shared(ptx::shared_address(p + row), split)); };
  const float lse = of_split(split_lse(shared)), left = of_split(split_factors(shared, 0)), right = of_split(split_factors(shared, 1));
  ptx::cluster_arrive();
  const float largest = fmaxf(lse, __shfl_xor_sync(~0u, lse, 1));
  const float base = largest == -INFINITY ? 0.0f : largest, weight = ptx::ex2(lse - base);
  const float total = weight + __shfl_xor_sync(~0u, weight, 1);
  const bool empty = total == 0.0f;  // not by the largest lse, because fmaxf ignores NaN
  if (lane < kHeads * kClusterSplits && split == 0 && Problem::exists(a, item, head)) {
    Problem::store_lse(a, item, head, empty ? INFINITY : (base + __log2f(total)) * kLn2);
  }
  const float share = empty ? 0.0f : weight / total, factors[2] = {share * left, share * right};
  const uint32_t there = __ballot_sync(~0u, lse != -INFINITY);  // without rows the split's memory is stale
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int of = item.first_head + first + i * kStep;
    if (!Problem::exists(a, item, of)) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sums[8] = {};
#pragma unroll
      for (int p = 0; p < kClusterSplits; ++p) {
        const float factor = __shfl_sync(~0u, factors[half], kClusterSplits * i + p);
        if ((there >> (kClusterSplits * i + p) & 1u) != 0) add_weighted(sums, factor, values[i][p][half]);
      }
      store_dims(Problem::out(a, item, of) + half * (kValueDim / 2) + 8 * lane, sums, 1.0f, a.out_aligned);
    }
  }
  ptx::cluster_wait();  // no CTA exits while the other reads
}

}  // namespace strata::cuda::sparse_prefill
