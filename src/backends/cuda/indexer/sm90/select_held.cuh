// The k largest of rows of logits that fit in the registers of a CTA or a cluster: V4 10.4. Like select.cuh, but the row is read once.
//
// select_search.cuh finds two values between which the k-th lies. Entries above the upper value are selected. The few between go to shared
// memory, in a cluster to the first CTA's, and their ranks are compared. A bitmap gives the ascending order. The counts are verified, so
// rounding decides nothing. If they do not fit (values that are not finite, many equal ones), the CTA, or the first of the cluster, selects
// the row exhaustively.
//
// Floor: the row once, 4 bytes an entry, at memory bandwidth; about ten instructions an entry; for few rows the latency of the steps.
#pragma once

#include "backends/cuda/indexer/select_exhaustive.cuh"
#include "backends/cuda/indexer/select_slots.cuh"
#include "backends/cuda/indexer/sm90/select_search.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"

namespace strata::cuda::sm90 {

inline constexpr uint32_t kFew = 64;  // entries whose ranks are compared, approximately

template <int kThreadCount, bool kCluster>
struct HeldShared {
  static constexpr int kThreads = kThreadCount;
  static constexpr uint32_t kLast = 256;
  __device__ static void sync() { __syncthreads(); }
  union {
    struct {
      alignas(16) uint32_t bins[kSearchWords<kCluster>];
      SearchShared<kThreads, kCluster> search;
      alignas(16) uint32_t chosen[2 * kThreads * (kCluster ? kHeldMaxCluster : 1)];  // a byte per quad of the row: four bits
      uint64_t last[kLast];                                                          // ranks
    };
    SelectShared<kThreads> exhaustive;
  };
  uint32_t warp_sums[kThreads / 32];
  uint32_t above, last_count;
};

// Appends a bit: whether v exceeds `bound`, from the sign of a difference, which NaN does not have. No comparison, which has half the rate.
__device__ __forceinline__ uint32_t append_exceeds(uint32_t bits, float v, float bound) {
  return __funnelshift_l(__float_as_uint(bound - v), bits, 1);
}

// Marks the thread's entries that exceed `upper`, and lists those between. `first` is the CTA that ends the search.
template <int kThreads, bool kCluster>
__device__ __forceinline__ void choose(HeldShared<kThreads, kCluster>& first, const HeldRow<kThreads>& own, float least, float upper,
                                       const float* row) {
  uint32_t chosen = 0, between = 0, quads = 0;
  auto* const bytes = reinterpret_cast<uint8_t*>(first.chosen);
  own.for_each_quad([&](uint32_t q) {
    const float v[4] = {own.quads[q].x, own.quads[q].y, own.quads[q].z, own.quads[q].w};
#pragma unroll
    for (int e = 3; e >= 0; --e) {
      chosen = append_exceeds(chosen, v[e], upper);
      between = append_exceeds(between, v[e], least);
    }
    bytes[own.first(q) / 4] = static_cast<uint8_t>(chosen & 15u);
    quads = q + 1;
  });
  const uint32_t above = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(__popc(chosen)));
  if (threadIdx.x % 32 == 0 && above > 0) atomicAdd(&first.above, above);
  for (between &= ~chosen; between != 0; between &= between - 1) {  // few threads
    const uint32_t bit = __ffs(static_cast<int>(between)) - 1;
    const auto entry = static_cast<int>(own.first(quads - 1 - bit / 4) + bit % 4);
    const float logit = *static_cast<const volatile float*>(row + entry);  // before the addition, whose result takes as long
    const uint32_t at = atomicAdd(&first.last_count, 1u);
    if (at < HeldShared<kThreads, kCluster>::kLast) first.last[at] = rank_of(logit, entry);
  }
}

// Writes the k selected entries of a row of n: those above, and the largest of those between. False if the counts do not fit.
template <int kThreads, bool kCluster>
__device__ __forceinline__ bool write_chosen(HeldShared<kThreads, kCluster>& s, int n, uint32_t k, uint32_t size, int32_t* out,
                                             const WordSlots& slots) {
  const uint32_t need = k - s.above, last = s.last_count;
  if (s.above > k || last < need || last > HeldShared<kThreads, kCluster>::kLast) return false;
  for (uint32_t i = threadIdx.x; i < last; i += kThreads) {
    const uint64_t mine = s.last[i];
    uint32_t larger = 0;
    for (uint32_t j = 0; j < last; ++j) larger += s.last[j] > mine;
    const int entry = entry_of(mine);
    if (larger < need) atomicOr(&s.chosen[entry / 16], 1u << (entry / 4 % 4 * 8 + entry % 4));
  }
  __syncthreads();
  // 32 entries of the row, from `word` 32 on.
  const auto bits = [&](int word) {
    const auto four_quads = [](uint32_t bytes) {
      const uint32_t pairs = (bytes | bytes >> 4) & 0x00FF00FFu;
      return (pairs | pairs >> 8) & 0xFFFFu;
    };
    const uint2 bytes = *reinterpret_cast<const uint2*>(s.chosen + 2 * word);
    return four_quads(bytes.x) | four_quads(bytes.y) << 16;
  };
  const auto write = [&](int word, uint32_t rest, uint32_t at) {
    for (; rest != 0; rest &= rest - 1, ++at) {
      const int entry = 32 * word + __ffs(static_cast<int>(rest)) - 1;
      out[at] = entry;
      if (!kCluster && slots.row != nullptr) slots.row[at] = slots.offset == WordSlots::kNone ? -1 : slots.offset + entry;
    }
  };
  uint32_t total;
  if constexpr (!kCluster) {
    const auto word = static_cast<int>(threadIdx.x);
    const uint32_t own = 32 * word < n ? bits(word) : 0;
    write(word, own, exclusive_sum(s, static_cast<uint32_t>(__popc(own)), total));
  } else {
    const int begin = static_cast<int>(threadIdx.x * size), end = min(begin + static_cast<int>(size), (n + 31) / 32);
    uint32_t mine = 0;
    for (int word = begin; word < end; ++word) mine += __popc(bits(word));
    uint32_t at = exclusive_sum(s, mine, total);
    for (int word = begin; word < end; ++word) {
      const uint32_t own = bits(word);
      write(word, own, at);
      at += __popc(own);
    }
  }
  return true;
}

// Prepares a row. In a cluster, what its CTAs need of each other is complete after ptx::cluster_wait().
template <int kThreads, bool kCluster>
__device__ __forceinline__ void prepare_held(HeldShared<kThreads, kCluster>& s, ClusterPosition cluster) {
  if (threadIdx.x == 0) s.above = s.last_count = 0;
  step_counts<kThreads, kCluster>(s.bins, cluster.size).clear();
  if constexpr (kCluster) ptx::cluster_arrive();
}

// A prepared row of n > k entries, at most kHeldEntries per CTA of the cluster.
template <int kThreads, bool kCluster>
__device__ __forceinline__ void select_held(HeldShared<kThreads, kCluster>& s, const SelectArgs& a, int64_t token, int n,
                                            ClusterPosition cluster, const WordSlots& slots) {
  const float* const row = a.logits + token * a.logits_stride;
  int32_t* const out = a.topk + token * a.topk_stride;
  const HeldRow<kThreads> own(row, static_cast<uint32_t>(n), cluster);
  if constexpr (kCluster) ptx::cluster_wait();
  float least, upper;
  bool done = find_between(s.search, s.bins, own, static_cast<uint32_t>(a.k), kFew, least, upper);
  if (done) {
    HeldShared<kThreads, kCluster>* first = &s;
    if constexpr (kCluster) first = cooperative_groups::this_cluster().map_shared_rank(&s, 0);
    choose(*first, own, least, upper, row);
  }
  sync_all<kCluster>();
  if (cluster.rank != 0) return;
  if (done) done = write_chosen(s, n, static_cast<uint32_t>(a.k), cluster.size, out, slots);
  if (done && slots.row != nullptr) return write_slot_count(a, token, n);
  if (!done) {
    __syncthreads();  // all threads have read it: its memory is reused
    select_exhaustively(s.exhaustive, a, row, n, out);
  }
  write_slots(a, token, n);
}

// Rows are 16-byte aligned and have at most kHeldEntries entries per CTA of the cluster.
template <int kThreads, bool kCluster>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) topk_select_held_kernel(const __grid_constant__ SelectArgs a) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  auto& s = *reinterpret_cast<HeldShared<kThreads, kCluster>*>(dynamic);
  const ClusterPosition cluster = cluster_position<kCluster>();
  const int64_t token = blockIdx.x / cluster.size;
  prepare_held(s, cluster);
  if (!a.after_logits) ptx::wait_for_previous_kernel();
  const int n = a.lengths[token];
  WordSlots slots;
  if constexpr (!kCluster) slots = WordSlots(a, token, static_cast<int>(threadIdx.x));
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  if (n > a.k) return select_held(s, a, token, n, cluster, slots);
  if constexpr (kCluster) ptx::cluster_wait();
  if (cluster.rank != 0) return;
  int32_t* const out = a.topk + token * a.topk_stride;
  for (auto i = static_cast<int>(threadIdx.x); i < a.k; i += kThreads) out[i] = i < n ? i : -1;
  write_slots(a, token, n);
}

}  // namespace strata::cuda::sm90
