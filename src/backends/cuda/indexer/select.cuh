// The k largest of a row of logits, exact and in a defined order: V4 10.4. One CTA per row.
//
// A sample of the row gives a logit that somewhat more than k entries reach. These entries are collected in one pass. If there are at least
// k, the k-th largest of the row is among them. If they fit in shared memory it is found there: by a histogram between their smallest and
// largest logit, and a comparison of the few entries of one bin. The selection depends on ranks alone, not on the sample, which only
// decides the amount of work. If the sample misleads, a second bound is tried; after that, and for large k, select_exhaustive.cuh selects
// the row. A bitmap of the selected entries gives their ascending order.
//
// Floor: the row once from memory, 4 bytes an entry; about three instructions an entry.
#pragma once

#include "backends/cuda/indexer/select_exhaustive.cuh"
#include "backends/cuda/indexer/select_steps.cuh"

namespace strata::cuda {

// Number of logits that the sampled search reads first, and its next steps.
inline constexpr int kFewSamples = 1024, kManySamples = 4096;
struct SamplePlan {
  int samples;  // one of these
  int target;   // the sample's target-th largest is the bound
};

// False: the row does not suit a list of this length.
__device__ __forceinline__ bool plan_sample(int n, int k, int list, SamplePlan& plan) {
  plan.samples = n < 32768 ? kFewSamples : kManySamples;
  // 1.5 times the expected number of the k largest, plus 8: a sample has more than that once in a thousand rows.
  const int64_t target = int64_t{3} * k * plan.samples / (2 * int64_t{n}) + 8;
  plan.target = static_cast<int>(target);
  return target * n / plan.samples <= list * 7 / 8;
}

// A value that about target / kSamples of the entries exceed; -inf if none is found.
template <int kSamples, int kThreads>
__device__ __forceinline__ float sampled_bound(SelectShared<kThreads>& s, const float* row, int n, int target) {
  constexpr int kPairs = kSamples / (2 * kThreads), kSectors = kSamples / 8;
  float values[2 * kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {  // four threads read one 32-byte sector; each section of the row has one
    const int64_t sector = kThreads / 4 * j + static_cast<int>(threadIdx.x) / 4;
    // At a random position in its section of the row: with equal distances a periodic row would show the same entries again and again.
    const auto begin = static_cast<int>(sector * (n / 8) / kSectors), next = static_cast<int>((sector + 1) * (n / 8) / kSectors);
    const uint32_t within = __umulhi(static_cast<uint32_t>(sector + 1) * 0x9E3779B9u, static_cast<uint32_t>(next - begin));
    const int at = (begin + static_cast<int>(within)) * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
    values[2 * j] = row[at];
    values[2 * j + 1] = row[at + 1];
  }
  float largest = -INFINITY, least = INFINITY;
#pragma unroll
  for (const float v : values) {
    largest = fmaxf(largest, v);
    least = fminf(least, v);
  }
  if (target <= kThreads) least = largest;  // `target` samples, one per thread, reach the smallest of these
  const StepCounts<kThreads> counts{s.bins};
  counts.clear();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t least_key = __reduce_min_sync(kAllLanes, order_key(least)), largest_key = __reduce_max_sync(kAllLanes, order_key(largest));
  if (lane == 0) s.last[warp] = uint64_t{least_key} << 32 | largest_key;
  __syncthreads();
  const uint64_t own = s.last[lane % (kThreads / 32)];
  least = logit_of(__reduce_min_sync(kAllLanes, static_cast<uint32_t>(own >> 32)));
  largest = logit_of(__reduce_max_sync(kAllLanes, static_cast<uint32_t>(own)));
  float upper;
  const bool found =
      find_step(counts, static_cast<uint32_t>(target), static_cast<uint32_t>(target) / 4, least, largest, upper, [&](auto&& count) {
#pragma unroll
        for (const float v : values) count(v);
      });
  return found ? least : -INFINITY;
}

// Appends the values of quads that `reach` has a bit for (4 q + e: element e of quad q) to the list, from `at` on. first_entry(q): first
// entry of a quad. No loop over the bits, because a value that is looked up later is waited for.
template <class Found, int kQuads, class FirstEntry>
__device__ __forceinline__ void append(Found& found, uint32_t at, uint32_t reach, const float4 (&quads)[kQuads],
                                       const FirstEntry& first_entry) {
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const float v[4] = {quads[q].x, quads[q].y, quads[q].z, quads[q].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if ((reach >> (4 * q + e) & 1) != 0) {
        found.logits[at] = v[e];
        found.entries[at++] = first_entry(q) + e;
      }
    }
  }
}

// Collects the entries of a row that reach the bound. s.list_count counts all of them, also those that do not fit in the list.
template <int kThreads>
__device__ __forceinline__ void collect(SelectShared<kThreads>& s, const SelectArgs& a, const float* row, int end, float least) {
  constexpr int kQuads = 8;  // float4 loads in flight
  const bool all = least == -INFINITY;
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
    uint32_t reach = 0;  // NaN does not reach it
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
    const uint32_t mine = __popc(reach);
    const uint32_t at = reserve(s.list_count, mine);
    if (at + mine > SelectShared<kThreads>::kList) continue;
    append(s.found, at, reach, quads,
           [&](int q) { return static_cast<int32_t>(first) + 4 * (kThreads * q + static_cast<int>(threadIdx.x)); });
  }
}

// Returns the number of collected entries. Not inlined: registers of both halves need not be live at once.
template <int kThreads>
__device__ __noinline__ uint32_t collect_by_sample(SelectShared<kThreads>& s, const SelectArgs& a, const float* row, int n,
                                                   SamplePlan plan) {
  const float bound = plan.samples == kManySamples ? sampled_bound<kManySamples>(s, row, n, plan.target)
                                                   : sampled_bound<kFewSamples>(s, row, n, plan.target);
  collect(s, a, row, n, bound);
  __syncthreads();
  return s.list_count;
}

// A bitmap's entries are counted per line.
inline constexpr int kLineWords = 8, kLineEntries = 32 * kLineWords;

// Replaces s.bins, the number of entries per line, by the number of entries in earlier lines, and sets `position`; returns the number of
// entries.
template <int kThreads>
__device__ __forceinline__ uint32_t sum_lines(SelectShared<kThreads>& s, int lines, uint32_t position) {
  constexpr int kOwn = SelectShared<kThreads>::kWords / kLineWords / kThreads;
  const int first = kOwn * static_cast<int>(threadIdx.x);
  uint32_t mine = 0, total;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) mine += first + i < lines ? s.bins[first + i] : 0;
  uint32_t before = position + exclusive_sum(s, mine, total);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (first + i >= lines) break;
    const uint32_t own = s.bins[first + i];
    s.bins[first + i] = before;
    before += own;
  }
  __syncthreads();
  return total;
}

// Number of set bits of the line of entry `at` before it.
__device__ __forceinline__ uint32_t chosen_before(const uint32_t* words, uint32_t at) {
  const auto* line = reinterpret_cast<const uint4*>(words + at / kLineEntries * kLineWords);
  const uint4 low = line[0], high = line[1];
  const uint32_t all[kLineWords] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const uint32_t own = at % kLineEntries / 32;
  uint32_t count = 0;
#pragma unroll
  for (uint32_t w = 0; w < kLineWords; ++w) {
    const uint32_t mask = w < own ? 0xFFFFFFFFu : w == own ? (1u << at % 32) - 1 : 0;
    count += __popc(all[w] & mask);
  }
  return count;
}

// Selects the k largest of the logits that the CTA's threads hold as order keys (0: none), at most `held` each, of a row of n entries.
// entry(e): index of this thread's e-th entry; every thread calls it before other memory of `s.found` is overwritten. s.low, s.high and
// s.last_count are set. Returns false if many equal logits are at the threshold.
template <int kThreads, class Entry>
__device__ __forceinline__ bool select_from_keys(SelectShared<kThreads>& s, const uint32_t (&keys)[kSelectOwn], int held, Entry&& entry,
                                                 int n, int k, int32_t* out) {
  using Shared = SelectShared<kThreads>;
  uint32_t low = 0xFFFFFFFFu, high = 0;
#pragma unroll
  for (int e = 0; e < kSelectOwn; ++e) {
    if (e >= held) break;
    high = max(high, keys[e]);
    low = min(low, keys[e] - 1);  // "none" becomes the largest number
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
  // The bin of the k-th among logits in [low, low + width]; repeated within the bin while it has many different logits.
  while (true) {
    const int shift = max(0, 21 - __clz(static_cast<int>(width)));
    clear_bins(s);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kSelectOwn; ++e) {
      if (e >= held) break;
      if (keys[e] >= low && keys[e] - low <= width) atomicAdd(&s.bins[(keys[e] - low) >> shift], 1u);
    }
    __syncthreads();
    find_bin(s, s.bins, need);
    low += s.bin << shift;
    width = (1u << shift) - 1;
    need -= s.above;
    if (s.count == need || s.count <= 32) break;
    if (shift == 0) {  // all equal
      if (s.count > Shared::kLast) return false;
      break;
    }
  }
  take_last(s, need, s.count, uint64_t{low} << 32, [&](auto&& add) {
    uint32_t within = 0;
#pragma unroll
    for (int e = 0; e < kSelectOwn; ++e) {
      if (e >= held) break;
      within |= (keys[e] >= low && keys[e] - low <= width ? 1u : 0u) << e;
    }
    if (within == 0) return;  // most threads
#pragma unroll
    for (int e = 0; e < kSelectOwn; ++e) {
      if ((within >> e & 1) != 0) add(uint64_t{keys[e]} << 32 | ~static_cast<uint32_t>(entry(e)));
    }
  });
  int32_t chosen[kSelectOwn];  // -1: not selected
  __syncthreads();
  const auto least = static_cast<uint32_t>(s.threshold >> 32), least_rest = static_cast<uint32_t>(s.threshold);
#pragma unroll
  for (int e = 0; e < kSelectOwn; ++e) {
    chosen[e] = -1;
    if (e >= held) continue;
    if (keys[e] >= least && keys[e] != 0) {
      const int32_t at = entry(e);
      if (keys[e] > least || ~static_cast<uint32_t>(at) >= least_rest) chosen[e] = at;
    }
  }
  uint32_t position = 0;
  for (int64_t first = 0; first < n; first += Shared::kSegment) {  // nearly always one iteration
    const auto entries = static_cast<int>(n - first < Shared::kSegment ? n - first : Shared::kSegment);
    const int lines = (entries + kLineEntries - 1) / kLineEntries;
    __syncthreads();  // list or bitmap have been read
    for (int w = 4 * static_cast<int>(threadIdx.x); w < lines * kLineWords; w += 4 * kThreads)
      *reinterpret_cast<uint4*>(s.words + w) = make_uint4(0, 0, 0, 0);
    clear_bins(s);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kSelectOwn; ++e) {
      if (e >= held) break;
      const uint32_t at = static_cast<uint32_t>(chosen[e]) - static_cast<uint32_t>(first);  // not selected: beyond any segment
      if (at < static_cast<uint32_t>(Shared::kSegment)) {
        atomicOr(&s.words[at / 32], 1u << at % 32);
        atomicAdd(&s.bins[at / kLineEntries], 1u);
      }
    }
    __syncthreads();
    position += sum_lines(s, lines, position);
#pragma unroll
    for (int e = 0; e < kSelectOwn; ++e) {
      if (e >= held) break;
      const uint32_t at = static_cast<uint32_t>(chosen[e]) - static_cast<uint32_t>(first);
      if (at < static_cast<uint32_t>(Shared::kSegment)) out[s.bins[at / kLineEntries] + chosen_before(s.words, at)] = chosen[e];
    }
  }
  return true;
}

// Selects one row.
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
    if (!select_from_keys(s, keys, kSelectOwn, entry, n, a.k, out)) select_exhaustively(s, a, row, n, out);
    return;
  }
  __syncthreads();
  SamplePlan plan;
  if (!plan_sample(n, a.k, kList, plan)) return select_exhaustively(s, a, row, n, out);
  uint32_t count = collect_by_sample(s, a, row, n, plan);
  const auto missed = [&] { return count < static_cast<uint32_t>(a.k) || count > kList; };
  if (missed()) {
    // Retry with a bound from the actual count: one row in a thousand, but the other rows would have to wait for an exhaustive one.
    const int64_t needed = int64_t{5} * a.k / 4 * plan.target / max(count, 1u);
    plan.target = static_cast<int>(min(max(needed, int64_t{1}), int64_t{2} * plan.target));
    __syncthreads();  // all threads have read the count
    if (threadIdx.x == 0) s.list_count = 0;
    count = collect_by_sample(s, a, row, n, plan);
    if (missed()) return select_exhaustively(s, a, row, n, out);
  }
  const int held = (static_cast<int>(count) + kThreads - 1) / kThreads;
#pragma unroll
  for (int e = 0; e < kSelectOwn; ++e) {
    const uint32_t i = threadIdx.x + kThreads * e;
    keys[e] = i < count ? order_key(s.found.logits[i]) : 0;
  }
  const auto entry = [&](int e) { return s.found.entries[threadIdx.x + kThreads * e]; };
  if (!select_from_keys(s, keys, held, entry, n, a.k, out)) select_exhaustively(s, a, row, n, out);
}

}  // namespace strata::cuda
