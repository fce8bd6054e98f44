// The k largest of rows of logits that fit in the registers of a block, or of a cluster: V4 10.4. As select.cuh, but the row is read
// once, and the bound of what is looked at comes from all of it.
//
// A thread has up to 32 entries, and the largest of each of some parts of them. Each warp finds, by halving an interval and counting, a
// bound that its share of k of these reach; at least k entries of the row reach the least of all warps' bounds. About 1.5 k do (of
// independent logits). They go to a list and, as they do, into a histogram between the bound and the row's largest. At most a quarter
// of 1024 threads (a barrier costs what it brings together) find the k-th in it; a bitmap gives the ascending order. Longer lists than
// there is room for, or many equal logits at the threshold: the block does the row exhaustively, of a cluster the first one.
//
// Floor: the row once, 4 bytes an entry, at memory bandwidth; of few rows the latency of the steps.
#pragma once

#include <cfloat>
#include <cooperative_groups.h>

#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/smxx/indexer/select_exhaustive.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kHeldQuads = 8;       // of a thread
inline constexpr int kHeldMaxCluster = 8;  // the largest that every device with clusters has

template <int kThreads>
struct HeldShape {
  static constexpr int kEntries = 4 * kHeldQuads * kThreads;                     // of a block
  static constexpr int kParts = kThreads == 1024 ? 2 : kThreads == 512 ? 4 : 8;  // of a thread's quads
  static constexpr int kMaxK = 16 * kParts * kThreads / 32;                      // half of all parts: more make long lists
  static constexpr int kList = kThreads == 1024 ? 8192 : kThreads == 128 ? 2048 : 4096;
  static constexpr int kMaxCluster = kThreads == 256 || kThreads == 1024 ? kHeldMaxCluster : 1;
  static constexpr int kBlocks = 1024 / kThreads;  // on an SM: registers
};

// The threads that end a search.
template <int kThreadCount>
struct HeldTail {
  static constexpr int kThreads = kThreadCount;
  __device__ static void sync() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }
  uint32_t warp_sums[kThreads / 32];
  uint32_t bin, above, count;  // as in SelectShared
};

template <int kThreads>
struct BoundShared {
  uint32_t bounds[kThreads / 32], largest[kThreads / 32];  // order keys, of each warp
};

template <int kThreads>
struct HeldShared {
  using Shape = HeldShape<kThreads>;
  using Tail = HeldTail < kThreads<256 ? kThreads : 256>;
  union {
    struct {
      uint64_t list[Shape::kList];  // ranks
      alignas(16) uint32_t bins[kSelectBins];
      uint32_t words[Shape::kMaxCluster * kThreads / 32 * 33];  // the bitmap, padded
      uint64_t last[Tail::kThreads];                            // of the list: the bin of the k-th
    };
    SelectShared<kThreads> exhaustive;
  };
  uint32_t list_count, last_count;
  BoundShared<kThreads> bound;
  uint32_t cluster_bounds[kHeldMaxCluster], cluster_largest[kHeldMaxCluster], cluster_counts[kHeldMaxCluster];  // of each block
  bool failed;
  Tail tail;
};

// The entries of a row of n that this thread holds, four at a time; NaN behind the end. Blocks of a cluster have pieces of the row in turn:
// the largest often lie side by side.
template <int kThreads>
struct HeldRow {
  static constexpr int kPiece = 4 * kThreads;
  const int n, rank, size;
  float4 quads[kHeldQuads];
  __device__ int piece(int quad) const { return kPiece * (quad * size + rank); }
  // Of a row with a period each thread has different entries: warps move on from quad to quad.
  __device__ int first(int quad) const { return piece(quad) + 4 * ((static_cast<int>(threadIdx.x) + 96 * quad) % kThreads); }
  // Quads that all threads have.
  __device__ int whole_quads() const { return min(max(n / kPiece - rank + size - 1, 0) / size, kHeldQuads); }

  __device__ HeldRow(const float* row, int n, int rank, int size) : n(n), rank(rank), size(size) {
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) quads[q] = ptx::load_quad_if(first(q) + 4 <= n, row + first(q), NAN);
    if (n % 4 == 0) return;
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) {
      const int i = first(q);
      if (i != n / 4 * 4) continue;  // all but one thread
      quads[q].x = row[i];
      if (i + 1 < n) quads[q].y = row[i + 1];
      if (i + 2 < n) quads[q].z = row[i + 2];
    }
  }
  // NaN does not count; -inf without any.
  __device__ float largest_of(int quad) const {
    const float4& v = quads[quad];
    return fmaxf(fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)), -INFINITY);
  }
  // A bit for each entry that reaches `least`, of -inf for NaN too.
  __device__ uint32_t reach(float least) const {
    uint32_t reach = 0;
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) {
      const float4& v = quads[q];
      if (v.x >= least) reach |= 1u << 4 * q;
      if (v.y >= least) reach |= 2u << 4 * q;
      if (v.z >= least) reach |= 4u << 4 * q;
      if (v.w >= least) reach |= 8u << 4 * q;
    }
    if (least > -INFINITY) return reach;
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) {
      const int rest = n - first(q);
      if (rest > 0) reach |= (rest < 4 ? (1u << rest) - 1 : 15u) << 4 * q;
    }
    return reach;
  }
  __device__ uint32_t least_key() const {
    uint32_t least = 0xFFFFFFFFu;
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) {
      const float v[4] = {quads[q].x, quads[q].y, quads[q].z, quads[q].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) least = first(q) + e < n ? min(least, order_key(v[e])) : least;
    }
    return least;
  }
};

// The order key of a logit that at least `need` of a warp's values reach, and not many more: all reach the least. NaN does not count.
template <int kValues>
__device__ __forceinline__ uint32_t warp_bound(const float (&values)[kValues], uint32_t least, uint32_t largest, int need) {
  uint32_t low = least, high = largest;
  // Halves the interval by value and by order key in turns: one is slow where few values are far away, the other around zero.
#pragma unroll 1
  for (int i = 0; i < 16 && high > low; ++i) {
    const float by_value = 0.5f * (logit_of(low) + logit_of(high)), by_key = logit_of(low + (high - low) / 2);
    const float middle = i % 2 == 0 && fabsf(by_value) <= FLT_MAX ? by_value : by_key;
    int reached = 0;
#pragma unroll
    for (int v = 0; v < kValues; ++v) reached += values[v] >= middle ? 1 : 0;
    reached = __reduce_add_sync(kAllLanes, reached);
    if (reached >= need) {
      low = order_key(middle);
      if (reached <= need + need / 2) break;
    } else {
      high = order_key(middle);
    }
  }
  return low;
}

// Finds a logit that at least k of a row reach, if all blocks that share it take the least of theirs, and the largest of this block's
// entries. Both as order keys. One barrier.
template <int kThreads>
__device__ __forceinline__ void find_bound(BoundShared<kThreads>& s, const HeldRow<kThreads>& row, int k, uint32_t& bound,
                                           uint32_t& largest) {
  constexpr int kParts = HeldShape<kThreads>::kParts, kWarps = kThreads / 32;
  float parts[kParts], most = -INFINITY;
  int entries = 0;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    parts[p] = -INFINITY;
#pragma unroll
    for (int q = p; q < kHeldQuads; q += kParts) {
      parts[p] = fmaxf(parts[p], row.largest_of(q));
      entries += min(max(row.n - row.first(q), 0), 4);
    }
    most = fmaxf(most, parts[p]);
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t warp_largest = __reduce_max_sync(kAllLanes, order_key(most));
  const auto of_warp = static_cast<uint32_t>(__reduce_add_sync(kAllLanes, entries));
  const auto n = static_cast<uint32_t>(row.n);
  const auto need = static_cast<int>((of_warp * static_cast<uint32_t>(k) + n - 1) / n);
  const int whole = min(row.whole_quads(), kParts);  // parts that every thread has
  uint32_t warp_least = 0xFFFFFFFFu;                 // a warp without entries promises none
  if (3 * need > 64 * whole) {                       // too few parts: the entries themselves
    float values[4 * kHeldQuads];
#pragma unroll
    for (int q = 0; q < kHeldQuads; ++q) {
      values[4 * q] = row.quads[q].x;
      values[4 * q + 1] = row.quads[q].y;
      values[4 * q + 2] = row.quads[q].z;
      values[4 * q + 3] = row.quads[q].w;
    }
    warp_least = warp_bound(values, __reduce_min_sync(kAllLanes, row.least_key()), warp_largest, need);
  } else if (of_warp > 0) {
    uint32_t least = 0xFFFFFFFFu;
#pragma unroll
    for (int p = 0; p < kParts; ++p) least = p < whole ? min(least, order_key(parts[p])) : least;
    warp_least = warp_bound(parts, __reduce_min_sync(kAllLanes, least), warp_largest, need);
  }
  if (lane == 0) {
    s.bounds[warp] = warp_least;
    s.largest[warp] = warp_largest;
  }
  __syncthreads();
  bound = __reduce_min_sync(kAllLanes, s.bounds[lane % kWarps]);
  largest = __reduce_max_sync(kAllLanes, s.largest[lane % kWarps]);
}

// The histogram of a list.
struct HeldBins {
  uint32_t low;
  int shift;
  __device__ uint32_t of(uint32_t key) const { return (key - low) >> shift; }
};

// Lists the block's entries that reach the bound, by number: all of them are counted, also those that the list has no
// room for. Values are not looked up here: that would be one access to L2 after the other.
template <int kThreads>
__device__ __forceinline__ void list_entries(HeldShared<kThreads>& s, const HeldRow<kThreads>& own, uint32_t bound) {
  uint32_t reach = own.reach(logit_of(bound));
  uint32_t at = reserve(s.list_count, __popc(reach));
  for (; reach != 0 && at < static_cast<uint32_t>(HeldShape<kThreads>::kList); reach &= reach - 1, ++at) {
    const int bit = __ffs(static_cast<int>(reach)) - 1;
    s.list[at] = static_cast<uint64_t>(own.first(bit / 4) + bit % 4);
  }
}

// The listed entries' ranks, into the list of `first` from `to` on, and into its histogram; first is the block that ends the search.
template <int kThreads>
__device__ __forceinline__ void rank_entries(const HeldShared<kThreads>& s, HeldShared<kThreads>& first, uint32_t to, const float* row,
                                             const HeldBins& bins) {
  const uint32_t count = s.list_count;
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const int entry = static_cast<int>(s.list[i]);
    const uint64_t rank = rank_of(row[entry], entry);
    first.list[to + i] = rank;
    atomicAdd(&first.bins[bins.of(static_cast<uint32_t>(rank >> 32))], 1u);
  }
}

// Writes the k largest of the list, of a row of n entries; false where it cannot. By the threads of the tail.
template <int kBlockThreads>
__device__ __forceinline__ bool select_from_list(HeldShared<kBlockThreads>& s, uint32_t count, const HeldBins& bins, int n, int k,
                                                 int32_t* out) {
  using Tail = typename HeldShared<kBlockThreads>::Tail;
  constexpr int kThreads = Tail::kThreads;
  find_bin(s.tail, s.bins, static_cast<uint32_t>(k));
  const uint32_t bin = s.tail.bin, need = static_cast<uint32_t>(k) - s.tail.above, in_bin = s.tail.count;
  if (in_bin != need && in_bin > static_cast<uint32_t>(kThreads)) return false;
  const auto choose = [&](uint64_t rank) {
    const int at = entry_of(rank);
    atomicOr(&s.words[padded(at / 32)], 1u << at % 32);
  };
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint64_t rank = s.list[i];
    const uint32_t own = bins.of(static_cast<uint32_t>(rank >> 32));
    if (own > bin || (own == bin && in_bin == need)) {
      choose(rank);
    } else if (own == bin) {
      s.last[atomicAdd(&s.last_count, 1u)] = rank;
    }
  }
  Tail::sync();
  if (in_bin != need) {
    if (threadIdx.x < in_bin) {
      const uint64_t mine = s.last[threadIdx.x];
      uint32_t larger = 0;
      for (uint32_t i = 0; i < in_bin; ++i) larger += s.last[i] > mine;
      if (larger < need) choose(mine);
    }
    Tail::sync();
  }
  const int words = (n + 31) / 32, own_words = (words + kThreads - 1) / kThreads;
  const int begin = static_cast<int>(threadIdx.x) * own_words, end = min(begin + own_words, words);
  uint32_t mine = 0, total;
  for (int w = begin; w < end; ++w) mine += __popc(s.words[padded(w)]);
  uint32_t at = exclusive_sum(s.tail, mine, total);
  for (int w = begin; w < end; ++w) {
    for (uint32_t word = s.words[padded(w)]; word != 0; word &= word - 1) out[at++] = 32 * w + __ffs(static_cast<int>(word)) - 1;
  }
  return true;
}

// Rows begin at multiples of 16 bytes and have at most HeldShape::kEntries entries a block of the cluster.
template <int kThreads, bool kCluster>
__global__ void __launch_bounds__(kThreads, HeldShape<kThreads>::kBlocks) topk_select_held_kernel(const __grid_constant__ SelectArgs a) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  auto& s = *reinterpret_cast<HeldShared<kThreads>*>(dynamic);
  const int rank = kCluster ? static_cast<int>(ptx::cluster_rank()) : 0;
  const int size = kCluster ? static_cast<int>(cooperative_groups::this_cluster().num_blocks()) : 1;
  const int64_t token = blockIdx.x / size;
  if (threadIdx.x == 0) {
    s.list_count = s.last_count = 0;
    s.failed = false;
  }
  for (int i = threadIdx.x; i < kSelectBins; i += kThreads) s.bins[i] = 0;
  for (int i = threadIdx.x; i < size * kThreads / 32 * 33; i += kThreads) s.words[i] = 0;
  if constexpr (kCluster) ptx::cluster_arrive();  // list and histogram of the first block are there
  if (!a.behind_logits) ptx::wait_for_previous_kernel();
  const int n = a.lengths[token];
  int32_t* const out = a.topk + token * a.topk_stride;
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  if (n <= a.k) {
    for (int i = rank * kThreads + threadIdx.x; i < a.k; i += size * kThreads) out[i] = i < n ? i : -1;
    if constexpr (kCluster) ptx::cluster_wait();
    return;
  }

  const float* const row = a.logits + token * a.logits_stride;
  const HeldRow<kThreads> own(row, n, rank, size);
  uint32_t bound, largest;
  find_bound(s.bound, own, a.k, bound, largest);
  HeldShared<kThreads>* first = &s;
  if constexpr (kCluster) {
    const auto cluster = cooperative_groups::this_cluster();
    first = cluster.map_shared_rank(&s, 0);
    ptx::cluster_wait();
    if (threadIdx.x < size) {
      HeldShared<kThreads>* const other = cluster.map_shared_rank(&s, threadIdx.x);
      other->cluster_bounds[rank] = bound;
      other->cluster_largest[rank] = largest;
    }
    cluster.sync();
    for (int r = 0; r < size; ++r) {
      bound = min(bound, s.cluster_bounds[r]);
      largest = max(largest, s.cluster_largest[r]);
    }
  }
  const HeldBins bins{bound, max(0, 21 - __clz(static_cast<int>(largest - bound)))};
  list_entries(s, own, bound);
  __syncthreads();
  uint32_t count = s.list_count, before = 0;
  if constexpr (kCluster) {
    const auto cluster = cooperative_groups::this_cluster();
    if (threadIdx.x < size) cluster.map_shared_rank(&s, threadIdx.x)->cluster_counts[rank] = count;
    cluster.sync();
    count = 0;
    for (int r = 0; r < size; ++r) {
      if (r < rank) before += s.cluster_counts[r];
      count += s.cluster_counts[r];
    }
  }
  const bool listed = count <= static_cast<uint32_t>(HeldShape<kThreads>::kList);
  if (listed) rank_entries(s, *first, before, row, bins);
  if constexpr (kCluster) {
    cooperative_groups::this_cluster().sync();
    if (rank != 0) return;
  } else {
    __syncthreads();
  }
  if (threadIdx.x < s.tail.kThreads && !(listed && select_from_list(s, count, bins, n, a.k, out))) s.failed = true;
  __syncthreads();
  if (s.failed) {
    __syncthreads();  // all have seen it: its memory is used for something else
    select_exhaustively(s.exhaustive, a, row, n, out);
  }
}

}  // namespace strata::cuda::sm90
