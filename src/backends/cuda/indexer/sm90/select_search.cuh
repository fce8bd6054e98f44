// Holds a row of numbers in the registers of a CTA or a cluster, and finds two values between which its k-th largest lies.
//
// Each thread takes the maxima of some groups of its numbers: at least k numbers reach the smallest of these over all threads. From there
// select_steps.cuh searches for the k-th.
#pragma once

#include <cooperative_groups.h>

#include "backends/cuda/indexer/select_steps.cuh"
#include "backends/cuda/indexer/sm90/notes.h"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kHeldQuads = 8;                   // of a thread
inline constexpr int kHeldMaxCluster = kMaxRowBlocks;  // the largest that every device with clusters supports

template <int kThreads>
inline constexpr int kHeldEntries = 4 * kHeldQuads* kThreads;  // of a block

// This CTA is the `rank`-th of `size` CTAs.
struct ClusterPosition {
  uint32_t rank = 0, size = 1;
};
template <bool kCluster>
__device__ __forceinline__ ClusterPosition cluster_position() {
  if constexpr (!kCluster) return {};
  return {ptx::cluster_rank(), cooperative_groups::this_cluster().num_blocks()};
}
template <bool kCluster>
__device__ __forceinline__ void sync_all() {
  if constexpr (kCluster) {
    cooperative_groups::this_cluster().sync();
  } else {
    __syncthreads();
  }
}

// The numbers of a row of n that this thread holds, four at a time; NaN after the end. Sections of the row are assigned to the CTAs of a
// cluster round-robin, because the largest numbers are often adjacent.
template <int kThreads>
struct HeldRow {
  static constexpr uint32_t kBlockEntries = 4 * kThreads;
  const uint32_t n, rank, size;  // this CTA is one of `size`
  float4 quads[kHeldQuads];
  __device__ uint32_t block_begin(uint32_t quad) const { return kBlockEntries * (quad * size + rank); }
  // In a periodic row each thread has different entries: warps move on from quad to quad.
  __device__ uint32_t first(uint32_t quad) const { return block_begin(quad) + 4 * ((threadIdx.x + 24 * quad) % kThreads); }

  __device__ HeldRow(const float* row, uint32_t n, ClusterPosition cluster) : n(n), rank(cluster.rank), size(cluster.size) {
    asm volatile("" : "+l"(row));  // one address, and 32-bit offsets from it
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) quads[q] = ptx::load_quad_if(first(q) + 4 <= n, row + first(q), NAN);
    if (n % 4 == 0) return;
    const uint32_t tail = n / 4 * 4, blocks = tail / kBlockEntries, quad = blocks / size;
    if (blocks % size != rank || first(quad) != tail) return;  // all threads but one
    const float x = row[tail], y = tail + 1 < n ? row[tail + 1] : NAN, z = tail + 2 < n ? row[tail + 2] : NAN;
#pragma unroll
    for (uint32_t q = 0; q < kHeldQuads; ++q) {
      if (q == quad) quads[q] = make_float4(x, y, z, NAN);
    }
  }
  // Calls f(q) for the quads of which some thread of the CTA has entries.
  template <class F>
  __device__ __forceinline__ void for_each_quad(F&& f) const {
#pragma unroll
    for (uint32_t q = 0; q < kHeldQuads; ++q) {
      if (block_begin(q) >= n) break;
      f(q);
    }
  }

  // The largest of the thread's numbers, and a value such that k of the row's numbers reach the smallest of all threads' values (unless
  // some are NaN). The value is the smallest of the maxima of groups, of which there are k, or of the numbers themselves.
  __device__ void extremes(uint32_t k, float& least, float& largest) const {
    // Quads that every thread has, and groups that each must have.
    const uint32_t whole = n / (kBlockEntries * size), rounds = (k + kThreads * size - 1) / (kThreads * size);
    float m[kHeldQuads];
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) m[q] = fmaxf(fmaxf(quads[q].x, quads[q].y), fmaxf(quads[q].z, quads[q].w));
    bool enough = false;
#pragma unroll
    for (uint32_t left = kHeldQuads; left > 0; left /= 2) {
      if (rounds <= left && (rounds > left / 2 || left == 1) && whole >= left) {
        enough = true;
        least = m[0];
#pragma unroll
        for (uint32_t q = 1; q < left; ++q) least = fminf(least, m[q]);
      }
#pragma unroll
      for (uint32_t q = 0; q < left / 2; ++q) m[q] = fmaxf(m[q], m[q + left / 2]);
    }
    largest = m[0];
    if (enough) return;
    least = INFINITY;
    for_each_quad([&](uint32_t q) { least = fminf(least, fminf(fminf(quads[q].x, quads[q].y), fminf(quads[q].z, quads[q].w))); });
  }
};

// A histogram of the CTA's numbers, followed by one of the cluster's. Aligned to 16 bytes.
template <bool kCluster>
inline constexpr int kSearchWords = kStepBins*(kCluster ? 2 : 1);

// StepCounts of a cluster: each CTA sums the counts of all.
template <int kThreads>
struct ClusterStepCounts {
  uint32_t* const bins;
  const uint32_t size;
  __device__ void clear() const { clear_words<kThreads, kStepBins>(bins); }
  __device__ void sync() const { cooperative_groups::this_cluster().sync(); }
  __device__ const uint32_t* totals() const {
    sync();
    uint32_t* const sums = bins + kStepBins;
    for (int i = 4 * static_cast<int>(threadIdx.x); i < kStepBins; i += 4 * kThreads) {
      uint4 sum{};
      for (uint32_t r = 0; r < size; ++r) {
        const uint4 v = *reinterpret_cast<const uint4*>(cooperative_groups::this_cluster().map_shared_rank(bins + i, r));
        sum = make_uint4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
      }
      *reinterpret_cast<uint4*>(sums + i) = sum;
    }
    __syncthreads();
    return sums;
  }
};
template <int kThreads, bool kCluster>
__device__ __forceinline__ auto step_counts(uint32_t* bins, uint32_t size) {
  if constexpr (kCluster) {
    return ClusterStepCounts<kThreads>{bins, size};
  } else {
    return StepCounts<kThreads>{bins};
  }
}

template <int kThreads, bool kCluster>
struct SearchShared {
  static constexpr int kWarps = kThreads / 32 * (kCluster ? kHeldMaxCluster : 1);
  uint32_t least[kWarps], largest[kWarps];  // order keys, of each warp
};

// At least k of the row's numbers exceed `least` and fewer than k exceed `upper`, with about `few` between or, where many are equal, more.
// Returns false if that fails, because of numbers that are not finite. Called by all threads of the CTA or cluster, which has started; all
// get the same result.
// CTAs of a cluster must not exit, nor change the first kStepBins of `bins`, before a later barrier.
template <int kThreads, bool kCluster>
__device__ __forceinline__ bool find_between(SearchShared<kThreads, kCluster>& s, uint32_t* bins, const HeldRow<kThreads>& own, uint32_t k,
                                             uint32_t few, float& least, float& upper) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float largest;
  own.extremes(k, least, largest);
  const uint32_t least_key = __reduce_min_sync(kAllLanes, order_key(least)), largest_key = __reduce_max_sync(kAllLanes, order_key(largest));
  if (lane < own.size) {
    SearchShared<kThreads, kCluster>* other = &s;
    if constexpr (kCluster) other = cooperative_groups::this_cluster().map_shared_rank(&s, lane);
    other->least[kThreads / 32 * own.rank + warp] = least_key;
    other->largest[kThreads / 32 * own.rank + warp] = largest_key;
  }
  sync_all<kCluster>();
  uint32_t low = 0xFFFFFFFFu, high = 0;
  for (uint32_t i = lane; i < kThreads / 32 * own.size; i += 32) {
    low = min(low, s.least[i]);
    high = max(high, s.largest[i]);
  }
  least = logit_of(__reduce_min_sync(kAllLanes, low));
  largest = logit_of(__reduce_max_sync(kAllLanes, high));

  return find_step(step_counts<kThreads, kCluster>(bins, own.size), k, few, least, largest, upper, [&](auto&& count) {
    own.for_each_quad([&](uint32_t q) {
      count(own.quads[q].x);
      count(own.quads[q].y);
      count(own.quads[q].z);
      count(own.quads[q].w);
    });
  });
}

}  // namespace strata::cuda::sm90
