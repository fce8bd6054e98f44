// The k largest of rows whose lengths the device knows and the host has bounds of: V4 10.4. A captured step's bound is that of all its
// replays, mostly far above a row's length, and what is best for a row of the bound takes twice the time of what is best for a short one.
//
// A row has a cluster. Up to kFewRowsEntries entries its first block takes it as select_few_rows.cuh, the others end; up to what the
// cluster's registers hold it is select_held.cuh's, and a longer one select_groups.cuh's where there are maxima of it, else select.cuh's.
// Code that a row does not need costs nothing: it stays in memory.
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

// Rows begin at multiples of 16 bytes and end with whole quads.
__global__ void __maxnreg__(kByLengthRegisters) topk_select_by_length_kernel(const __grid_constant__ SelectArgs a) {
  constexpr int kThreads = kByLengthThreads, kFewQuads = 4, kQuads = 8;
  extern __shared__ __align__(128) uint8_t dynamic[];
  auto& s = *reinterpret_cast<ByLengthShared*>(dynamic);
  const ClusterPlace place = cluster_place<true>();
  const int64_t token = blockIdx.x / place.size;
  if (!a.behind_logits) ptx::wait_for_previous_kernel();
  const int n = a.lengths[token];
  const auto start = [] {
    ptx::wait_for_previous_kernel();
    ptx::launch_dependents();
  };
  static_assert(kHeldByBlock == kHeldEntries<kThreads> && kFewRowsEntries == 4 * kQuads * kThreads);
  if (n <= kFewRowsEntries) {
    if (place.rank != 0) return start();
    return n <= 4 * kFewQuads * kThreads ? take_few_row<kThreads, kFewQuads>(s.few, a, token, n)
                                         : take_few_row<kThreads, kQuads>(s.few, a, token, n);
  }
  if (n <= a.k) {
    start();
    if (place.rank == 0) select_apart(s.few.exhaustive, a, token, n);
  } else if (n <= place.size * kHeldByBlock) {
    prepare_held(s.held, place);
    start();
    select_held(s.held, a, token, n, place, {});
  } else if (a.maxima != nullptr && groups_suit(a, n, place.size)) {
    prepare_groups(s.groups, place);
    start();
    select_groups(s.groups, a, token, n, place);
  } else {
    start();
    if (place.rank == 0) select_without_maxima(s.groups.select, a, token);
  }
}

}  // namespace strata::cuda::sm90
