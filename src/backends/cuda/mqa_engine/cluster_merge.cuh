// Merges the two parts of a token's heads where the blocks that have them are a cluster: each block takes half of the heads of both, out of
// shared memory, so that parts are neither written to memory nor read by another kernel. A part is fp16 multiples of its factors. Clusters
// of two fill the multiprocessors; those of four do not (30 at a time on an H200).
#pragma once

#include "backends/cuda/device/add_halves.cuh"
#include "backends/cuda/mqa_engine/pipeline.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/convert.cuh"

namespace strata::cuda::sparse_prefill {

inline constexpr int kClusterParts = 2;

// Where a block that has one item keeps it as a part, when its rows are done with: heads by boxes of 64 lanes, swizzled, in the place of
// rows; the factors of each half of the lanes in that of what sums are rescaled by; lse in base 2 (-inf: no rows) in that of a second
// item's normalizers.
inline constexpr int kPartBoxes = kValueDim / kChunkLanes;
template <class Shared>
__device__ __forceinline__ uint32_t part_sums(Shared& shared) {
  static_assert(sizeof(shared.k) >= kPartBoxes * kHeadChunkBytes);
  return ptx::shared_address(&shared.k);
}
template <class Shared>
__device__ __forceinline__ float* part_factors(Shared& shared, int half) {
  return shared.rescale[half];
}
template <class Shared>
__device__ __forceinline__ float* part_lse(Shared& shared) {
  return shared.normalizer[1];
}

// By the value warpgroups of both blocks, whose rank is their split. A warp has every 16th head, four at a time.
template <class Problem, class Shared>
__device__ __forceinline__ void merge_in_cluster(const typename Problem::Args& a, Shared& shared, const typename Problem::Item& item) {
  constexpr int kWarps = 2 * kWarpgroup / 32, kStep = kClusterParts * kWarps, kHeads = kHeadTile / kStep;
  const int lane = threadIdx.x % 32, first = static_cast<int>(ptx::cluster_rank()) + kClusterParts * (threadIdx.x / 32 % kWarps);
  ptx::cluster_arrive();
  ptx::cluster_wait();
  uint4 parts[kHeads][kClusterParts][2];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
#pragma unroll
    for (int p = 0; p < kClusterParts; ++p) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t box = part_sums(shared) + (half * (kPartBoxes / 2) + lane / 8) * kHeadChunkBytes;
        parts[i][p][half] = ptx::load_cluster(ptx::map_shared(box + unit_offset(first + i * kStep, lane % 8), p));
      }
    }
  }
  // A lane for each part of each head.
  const int part = lane % kClusterParts, row = first + lane / kClusterParts % kHeads * kStep, head = item.first_head + row;
  const auto of_part = [&](const float* p) { return ptx::load_cluster_f32(ptx::map_shared(ptx::shared_address(p + row), part)); };
  const float lse = of_part(part_lse(shared)), left = of_part(part_factors(shared, 0)), right = of_part(part_factors(shared, 1));
  ptx::cluster_arrive();
  const float largest = fmaxf(lse, __shfl_xor_sync(~0u, lse, 1));
  const float base = largest == -INFINITY ? 0.0f : largest, weight = ptx::ex2(lse - base);
  const float total = weight + __shfl_xor_sync(~0u, weight, 1);
  const bool empty = total == 0.0f;  // not by the largest: a maximum passes over what is no number
  if (lane < kHeads * kClusterParts && part == 0 && Problem::exists(a, item, head)) {
    Problem::store_lse(a, item, head, empty ? INFINITY : (base + __log2f(total)) * kLn2);
  }
  const float share = empty ? 0.0f : weight / total, factors[2] = {share * left, share * right};
  const uint32_t there = __ballot_sync(~0u, lse != -INFINITY);  // without rows a part is what was there before
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int of = item.first_head + first + i * kStep;
    if (!Problem::exists(a, item, of)) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sums[8] = {};
#pragma unroll
      for (int p = 0; p < kClusterParts; ++p) {
        const float factor = __shfl_sync(~0u, factors[half], kClusterParts * i + p);
        if ((there >> (kClusterParts * i + p) & 1u) != 0) add_weighted(sums, factor, parts[i][p][half]);
      }
      store_lanes(Problem::out(a, item, of) + half * (kValueDim / 2) + 8 * lane, sums, 1.0f, a.out_aligned);
    }
  }
  ptx::cluster_wait();  // nobody leaves while the other reads
}

}  // namespace strata::cuda::sparse_prefill
