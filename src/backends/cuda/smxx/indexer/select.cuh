// The k largest of a row of logits, exactly and in one order: V4 10.4. A block takes a row.
//
// A sample of the row tells a logit that somewhat more than k entries reach. These are collected in one pass; if they are at least k, the
// k-th largest of the row is theirs, and if they fit in shared memory it is found there: a histogram between their least and largest logit,
// and a look at the few entries of one bin. Which ones are taken depends on the ranks alone, not on the sample: it decides only how much
// work there is. Where it misleads (or k is large), select_exhaustive.cuh does the row. A bitmap of the chosen entries
// gives their ascending order.
//
// Floor: the row once from memory, 4 bytes an entry; about three instructions an entry.
#pragma once

#include "backends/cuda/smxx/indexer/select_exhaustive.cuh"

namespace strata::cuda {

// Logits that the sampled search looks at first, and how it goes on from there.
struct SamplePlan {
  int samples;
  int target;  // the sample's target-th largest is the bound
};

// False: the row is none for a list of this length.
__device__ __forceinline__ bool plan_sample(int n, int k, int list, SamplePlan& plan) {
  plan.samples = n < 65536 ? 1024 : 4096;
  // Half as many again as k would have on average, and 8: of the k largest a sample has more than that once in a thousand rows.
  const int64_t target = int64_t{3} * k * plan.samples / (2 * int64_t{n}) + 8;
  plan.target = static_cast<int>(target);
  return target * n / plan.samples <= list * 7 / 8;
}

// An order key that about target / samples of the entries reach.
template <int kThreads>
__device__ __forceinline__ uint32_t sampled_bound(SelectShared<kThreads>& s, const float* row, int n, SamplePlan plan) {
  constexpr int kPairs = 4096 / (2 * kThreads);
  uint32_t keys[2 * kPairs];
  const int pairs = plan.samples / (2 * kThreads), sectors = plan.samples / 8;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    if (j < pairs) {  // four threads take one 32-byte sector, sectors are evenly spread
      const int64_t sector = kThreads / 4 * j + static_cast<int>(threadIdx.x) / 4;
      const int at = static_cast<int>(sector * (n / 8) / sectors) * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
      keys[2 * j] = order_key(row[at]);
      keys[2 * j + 1] = order_key(row[at + 1]);
    }
  }
  uint32_t prefix = 0, need = static_cast<uint32_t>(plan.target);
  for (int digit = 0;; ++digit) {  // 11 bits, and 11 more where they leave too many
    clear_bins(s);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 2 * kPairs; ++j) {
      if (j < 2 * pairs && (digit == 0 || keys[j] >> 21 == prefix)) atomicAdd(&s.bins[keys[j] >> (digit == 0 ? 21 : 10) & 2047], 1u);
    }
    __syncthreads();
    find_bin(s, s.bins, need);
    prefix = prefix << 11 | s.bin;
    need -= s.above;
    if (digit == 1) return prefix << 10;
    if (s.count <= need + static_cast<uint32_t>(plan.target) / 4) return prefix << 21;
  }
}

// Collects the entries of a row that reach the bound; s.list_count counts them all, also those that the list has no room for.
template <int kThreads>
__device__ __forceinline__ void collect(SelectShared<kThreads>& s, const SelectArgs& a, const float* row, int end, uint32_t bound) {
  constexpr int kQuads = 8;  // float4 loads in flight
  const bool all = bound <= order_key(-INFINITY);
  const float least = logit_of(bound);
  for (int64_t first = 0; first < end; first += 4 * kThreads * kQuads) {
    const bool whole = a.aligned && first + 4 * kThreads * kQuads <= end;
    float4 quads[kQuads];
    if (whole) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q)
        quads[q] = *reinterpret_cast<const float4*>(row + first + 4 * (kThreads * q + static_cast<int>(threadIdx.x)));
    } else {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) quads[q] = load_quad(a, row, first + 4 * (kThreads * q + static_cast<int>(threadIdx.x)), end);
    }
    uint32_t reach = 0;  // NaN does not
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (quads[q].x >= least) reach |= 1u << 4 * q;
      if (quads[q].y >= least) reach |= 2u << 4 * q;
      if (quads[q].z >= least) reach |= 4u << 4 * q;
      if (quads[q].w >= least) reach |= 8u << 4 * q;
    }
    if (all) reach = 0xFFFFFFFFu;
    if (!whole) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const int64_t rest = end - first - 4 * (kThreads * q + static_cast<int>(threadIdx.x));
        if (rest < 4) reach &= ~((rest <= 0 ? 15u : 15u << rest & 15u) << 4 * q);
      }
    }
    // One addition to the list's count a warp.
    const int lane = threadIdx.x % 32;
    const uint32_t mine = __popc(reach);
    uint32_t sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    uint32_t at = 0;
    if (lane == 31 && sum > 0) at = atomicAdd(&s.list_count, sum);
    at = __shfl_sync(kAllLanes, at, 31) + sum - mine;
    for (; reach != 0; reach &= reach - 1, ++at) {
      const int bit = __ffs(static_cast<int>(reach)) - 1;
      if (at < SelectShared<kThreads>::kList) {
        s.found.entries[at] = static_cast<int32_t>(first) + 4 * (kThreads * (bit / 4) + static_cast<int>(threadIdx.x)) + bit % 4;
      }
    }
  }
}

// The k largest of the logits that the threads of a block hold as order keys (0: none), of a row of n entries. entry(e) is the number of
// the e-th of this thread; every thread calls it before any other memory of `s.found` is written over. s.low, s.high and s.last_count are
// set. False where many equal logits stand at the threshold.
template <int kThreads, class Entry>
__device__ __forceinline__ bool select_from_keys(SelectShared<kThreads>& s, const uint32_t (&keys)[kSelectOwn], Entry&& entry, int n, int k,
                                                 int32_t* out) {
  using Shared = SelectShared<kThreads>;
  uint32_t low = 0xFFFFFFFFu, high = 0;
#pragma unroll
  for (int e = 0; e < kSelectOwn; ++e) {
    high = max(high, keys[e]);
    low = min(low, keys[e] - 1);  // none is the largest number
  }
  low = __reduce_min_sync(kAllLanes, low);
  high = __reduce_max_sync(kAllLanes, high);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&s.low, low);
    atomicMax(&s.high, high);
  }
  __syncthreads();
  low = s.low + 1;
  uint32_t width = s.high - low, need = static_cast<uint32_t>(k);
  // The bin of the k-th among logits in [low, low + width]; and once more within it, as long as there are many in it that differ.
  while (true) {
    const int shift = max(0, 21 - __clz(static_cast<int>(width)));
    clear_bins(s);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kSelectOwn; ++e) {
      if (keys[e] >= low && keys[e] - low <= width) atomicAdd(&s.bins[(keys[e] - low) >> shift], 1u);
    }
    __syncthreads();
    find_bin(s, s.bins, need);
    low += s.bin << shift;
    width = (1u << shift) - 1;
    need -= s.above;
    if (s.count == need || s.count <= 32) break;
    if (shift == 0) return false;
  }
  take_last(s, need, s.count, uint64_t{low} << 32, [&](auto&& add) {
    uint32_t within = 0;
#pragma unroll
    for (int e = 0; e < kSelectOwn; ++e) within |= (keys[e] >= low && keys[e] - low <= width ? 1u : 0u) << e;
    if (within == 0) return;  // most threads
#pragma unroll
    for (int e = 0; e < kSelectOwn; ++e) {
      if ((within >> e & 1) != 0) add(uint64_t{keys[e]} << 32 | ~static_cast<uint32_t>(entry(e)));
    }
  });
  int32_t chosen[kSelectOwn];  // -1: not chosen
  __syncthreads();
  const auto least = static_cast<uint32_t>(s.threshold >> 32), least_rest = static_cast<uint32_t>(s.threshold);
#pragma unroll
  for (int e = 0; e < kSelectOwn; ++e) {
    chosen[e] = -1;
    if (keys[e] >= least && keys[e] != 0) {
      const int32_t at = entry(e);
      if (keys[e] > least || ~static_cast<uint32_t>(at) >= least_rest) chosen[e] = at;
    }
  }
  uint32_t position = 0;
  for (int64_t first = 0; first < n; first += Shared::kSegment) {  // nearly always once
    const auto words = static_cast<int>(((n - first < Shared::kSegment ? n - first : Shared::kSegment) + 31) / 32);
    const int own_words = (words + kThreads - 1) / kThreads;
    __syncthreads();  // list or bitmap have been read
    for (int w = threadIdx.x; w < own_words * kThreads; w += kThreads) s.words[padded(w)] = 0;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kSelectOwn; ++e) {
      const uint32_t at = static_cast<uint32_t>(chosen[e]) - static_cast<uint32_t>(first);  // not chosen: beyond any segment
      if (at < static_cast<uint32_t>(Shared::kSegment)) atomicOr(&s.words[padded(static_cast<int>(at / 32))], 1u << at % 32);
    }
    __syncthreads();
    const int begin = static_cast<int>(threadIdx.x) * own_words;
    uint32_t mine = 0, total;
    for (int w = begin; w < begin + own_words; ++w) mine += __popc(s.words[padded(w)]);
    uint32_t at = position + exclusive_sum(s, mine, total);
    for (int w = begin; w < begin + own_words; ++w) {
      for (uint32_t word = s.words[padded(w)]; word != 0; word &= word - 1) {
        out[at++] = static_cast<int32_t>(first) + 32 * w + __ffs(static_cast<int>(word)) - 1;
      }
    }
    position += total;
  }
  return true;
}

// One row.
template <int kThreads>
__device__ __forceinline__ void select_row(SelectShared<kThreads>& s, const SelectArgs& a, int64_t token) {
  constexpr int kList = SelectShared<kThreads>::kList;
  const int n = a.lengths[token];
  int32_t* const out = a.topk + token * a.topk_stride;
  if (n <= a.k) {
    for (int i = threadIdx.x; i < a.k; i += kThreads) out[i] = i < n ? i : -1;
    return;
  }
  const float* const row = a.logits + token * a.logits_stride;
  if (threadIdx.x == 0) {
    s.list_count = s.last_count = s.high = 0;
    s.low = 0xFFFFFFFFu;
  }
  uint32_t keys[kSelectOwn];
  if (n <= kThreads * kSelectOwn) {  // the threads hold the row
#pragma unroll
    for (int q = 0; q < kSelectOwn / 4; ++q) {
      const int i = 4 * (kThreads * q + static_cast<int>(threadIdx.x));
      const float4 v = load_quad(a, row, i, n);
      keys[4 * q] = i < n ? order_key(v.x) : 0;
      keys[4 * q + 1] = i + 1 < n ? order_key(v.y) : 0;
      keys[4 * q + 2] = i + 2 < n ? order_key(v.z) : 0;
      keys[4 * q + 3] = i + 3 < n ? order_key(v.w) : 0;
    }
    __syncthreads();
    const auto entry = [](int e) { return 4 * (kThreads * (e / 4) + static_cast<int>(threadIdx.x)) + e % 4; };
    if (!select_from_keys(s, keys, entry, n, a.k, out)) select_exhaustively(s, a, row, n, out);
    return;
  }
  __syncthreads();
  SamplePlan plan;
  if (!plan_sample(n, a.k, kList, plan)) return select_exhaustively(s, a, row, n, out);
  collect(s, a, row, n, sampled_bound(s, row, n, plan));
  __syncthreads();
  const uint32_t count = s.list_count;
  if (count < static_cast<uint32_t>(a.k) || count > kList) return select_exhaustively(s, a, row, n, out);
#pragma unroll
  for (int e = 0; e < kSelectOwn; ++e) {
    const uint32_t i = threadIdx.x + kThreads * e;
    keys[e] = i < count ? order_key(row[s.found.entries[i]]) : 0;
  }
  const auto entry = [&](int e) { return s.found.entries[threadIdx.x + kThreads * e]; };
  if (!select_from_keys(s, keys, entry, n, a.k, out)) select_exhaustively(s, a, row, n, out);
}

}  // namespace strata::cuda
