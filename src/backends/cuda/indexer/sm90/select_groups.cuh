// The k largest of long rows of logits whose kernel also wrote the maximum of every kMaximaRows (16) of them, for few rows: V4 10.4.
//
// select_search.cuh finds, in a cluster, a bound that k of these maxima reach. At least k logits reach it then, and hardly more: where the
// row has 32 groups per k, a group seldom has two. Only the logits of the groups that reach the bound are read. Those that reach it go to a
// list of the first CTA, which ends the search as select.cuh does.
//
// Floor: a sixteenth of the row and 64 bytes per k, from L2; in practice the latency of the steps.
#pragma once

#include "backends/cuda/indexer/select.cuh"
#include "backends/cuda/indexer/select_slots.cuh"
#include "backends/cuda/indexer/sm90/notes.h"
#include "backends/cuda/indexer/sm90/select_search.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kGroupsThreads = 512;  // such a CTA fits on an SM with one of the logits kernel for few tokens

// Of a CTA of a cluster.
struct GroupsShared {
  SelectShared<kGroupsThreads> select;  // the first CTA's is the list of all
  SearchShared<kGroupsThreads, true> search;
  uint32_t num_groups;
  // 1.5 times what rows with k up to 2048 need.
  static constexpr uint32_t kMaxGroups = 3072;
  uint32_t groups[kMaxGroups];
};

// Not inlined: values that mislead the bound.
inline __device__ __noinline__ void select_without_maxima(SelectShared<kGroupsThreads>& s, const SelectArgs& a, int64_t token) {
  select_row(s, a, token);
  write_slots(a, token, a.lengths[token]);
}

// Lists the logits of this CTA's groups that reach the bound.
__device__ __forceinline__ void list_logits(GroupsShared& s, SelectShared<kGroupsThreads>& first, const SelectArgs& a, const float* row,
                                            int n, float least) {
  constexpr int kQuads = kMaximaRows / 4, kBatch = 4;  // quads of a group, and of a thread at a time
  const int quads = kQuads * static_cast<int>(s.num_groups);
  for (int begin = static_cast<int>(threadIdx.x); begin - static_cast<int>(threadIdx.x % 32) < quads; begin += kBatch * kGroupsThreads) {
    int entries[kBatch];
    float4 values[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = begin + b * kGroupsThreads;
      entries[b] = i < quads ? kMaximaRows * static_cast<int>(s.groups[i / kQuads]) + 4 * (i % kQuads) : n;
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) values[b] = ptx::load_quad_if(entries[b] < n, row + entries[b], 0.0f);  // rows end with whole quads
    uint32_t reach = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const float v[4] = {values[b].x, values[b].y, values[b].z, values[b].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) reach |= (v[e] >= least && entries[b] + e < n ? 1u : 0u) << (4 * b + e);
    }
    const uint32_t mine = __popc(reach);
    const uint32_t at = reserve(first.list_count, mine);
    if (at + mine > SelectShared<kGroupsThreads>::kList) continue;
    append(first.found, at, reach, values, [&](int b) { return entries[b]; });
  }
}

__device__ __forceinline__ void prepare_groups(GroupsShared& s, ClusterPosition cluster) {
  if (threadIdx.x == 0) {
    s.select.list_count = s.select.last_count = s.select.high = s.num_groups = 0;
    s.select.low = 0xFFFFFFFFu;
  }
  step_counts<kGroupsThreads, true>(s.select.bins, cluster.size).clear();
  ptx::cluster_arrive();  // the first CTA's list is complete
}

// Whether rows of n entries are selected by their maxima.
__device__ __forceinline__ bool groups_suit(const SelectArgs& a, int n, uint32_t blocks) {
  const int maxima = (n + kMaximaRows - 1) / kMaximaRows;
  return maxima >= kGroupsOfEach * a.k && static_cast<uint32_t>(maxima) <= blocks * kHeldEntries<kGroupsThreads>;
}

// A prepared row of n entries that groups suit.
__device__ __forceinline__ void select_groups(GroupsShared& s, const SelectArgs& a, int64_t token, int n, ClusterPosition cluster) {
  constexpr int kList = SelectShared<kGroupsThreads>::kList;
  int32_t* const out = a.topk + token * a.topk_stride;
  const float* const row = a.logits + token * a.logits_stride;
  const int maxima = (n + kMaximaRows - 1) / kMaximaRows;
  const HeldRow<kGroupsThreads> own(a.maxima + token * a.maxima_stride, static_cast<uint32_t>(maxima), cluster);
  GroupsShared* const first = cooperative_groups::this_cluster().map_shared_rank(&s, 0);
  ptx::cluster_wait();
  float least, upper;
  const auto k = static_cast<uint32_t>(a.k);
  if (!find_between(s.search, s.select.bins, own, k, k / 2, least, upper)) {
    sync_all<true>();
    if (cluster.rank == 0) select_without_maxima(s.select, a, token);
    return;
  }
  __syncthreads();  // this CTA's sums have been read: their memory is reused
  own.for_each_quad([&](uint32_t q) {
    const float v[4] = {own.quads[q].x, own.quads[q].y, own.quads[q].z, own.quads[q].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!(v[e] > least)) continue;
      const uint32_t at = atomicAdd(&s.num_groups, 1u);
      if (at < GroupsShared::kMaxGroups) s.groups[at] = own.first(q) + e;
    }
  });
  __syncthreads();
  if (s.num_groups <= GroupsShared::kMaxGroups) {
    list_logits(s, first->select, a, row, n, least);
  } else if (threadIdx.x == 0) {
    atomicAdd(&first->select.list_count, kList + 1u);  // more than there is room for
  }
  sync_all<true>();
  if (cluster.rank != 0) return;
  const uint32_t count = s.select.list_count;
  if (count < static_cast<uint32_t>(a.k) || count > kList) {
    __syncthreads();  // all threads have read it
    return select_without_maxima(s.select, a, token);
  }
  uint32_t keys[kSelectOwn];
#pragma unroll
  for (int e = 0; e < kSelectOwn; ++e) {
    const uint32_t i = threadIdx.x + kGroupsThreads * e;
    keys[e] = i < count ? order_key(s.select.found.logits[i]) : 0;
  }
  const auto entry = [&](int e) { return s.select.found.entries[threadIdx.x + kGroupsThreads * e]; };
  const int held = (static_cast<int>(count) + kGroupsThreads - 1) / kGroupsThreads;
  if (!select_from_keys(s.select, keys, held, entry, n, a.k, out)) select_exhaustively(s.select, a, row, n, out);
  write_slots(a, token, n);
}

}  // namespace strata::cuda::sm90
