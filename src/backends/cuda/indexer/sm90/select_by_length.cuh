// The k largest of rows whose lengths are known to the device and bounded by the host: V4 10.4. A captured step's bound covers all its
// replays, and is usually far above a row's length. What is best for a row of the bound takes twice the time of what is best for a short
// row.
//
// A row has a cluster. Up to kFewRowsEntries entries its first CTA selects as select_few_rows.cuh does, and the others exit. Rows that the
// cluster's registers hold use select_held.cuh. Longer ones use select_groups.cuh where there are maxima, else select.cuh. Code that a row
// does not need costs nothing: it is not fetched.
#pragma once

#include "backends/cuda/indexer/sm90/select_few_rows.cuh"
#include "backends/cuda/indexer/sm90/select_groups.cuh"
#include "backends/cuda/indexer/sm90/select_held.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kByLengthThreads = kGroupsThreads, kByLengthRegisters = 80;
union ByLengthShared {
  FewRowsShared<kByLengthThreads> few;
  HeldShared<kByLengthThreads, true> held;
  GroupsShared groups;
};

// Rows are 16-byte aligned and end with whole quads.
__global__ void __maxnreg__(kByLengthRegisters) topk_select_by_length_kernel(const __grid_constant__ SelectArgs a) {
  constexpr int kThreads = kByLengthThreads, kFewQuads = 4, kQuads = 8;
  extern __shared__ __align__(128) uint8_t dynamic[];
  auto& s = *reinterpret_cast<ByLengthShared*>(dynamic);
  const ClusterPosition cluster = cluster_position<true>();
  const int64_t token = blockIdx.x / cluster.size;
  if (!a.after_logits) ptx::wait_for_previous_kernel();
  const int n = a.lengths[token];
  const auto start = [] {
    ptx::wait_for_previous_kernel();
    ptx::launch_dependents();
  };
  static_assert(kHeldByBlock == kHeldEntries<kThreads> && kFewRowsEntries == 4 * kQuads * kThreads);
  if (n <= kFewRowsEntries) {
    if (cluster.rank != 0) return start();
    return n <= 4 * kFewQuads * kThreads ? take_few_row<kThreads, kFewQuads>(s.few, a, token, n)
                                         : take_few_row<kThreads, kQuads>(s.few, a, token, n);
  }
  if (n <= a.k) {
    start();
    if (cluster.rank == 0) select_noinline(s.few.exhaustive, a, token, n);
  } else if (n <= cluster.size * kHeldByBlock) {
    prepare_held(s.held, cluster);
    start();
    select_held(s.held, a, token, n, cluster, {});
  } else if (a.maxima != nullptr && groups_suit(a, n, cluster.size)) {
    prepare_groups(s.groups, cluster);
    start();
    select_groups(s.groups, a, token, n, cluster);
  } else {
    start();
    if (cluster.rank == 0) select_without_maxima(s.groups.select, a, token);
  }
}

}  // namespace strata::cuda::sm90
