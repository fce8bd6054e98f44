// Shared by both selection algorithms (select.cuh): ranks, shared memory, sums over a CTA, and the end of every search.
//
// An entry's rank is a 64-bit number: the logit's order key, followed by the complement of the entry's index. So no two ranks are equal,
// and the smaller index wins among equal logits.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/indexer/order_key.cuh"
#include "backends/cuda/indexer/select_args.h"

namespace strata::cuda {

inline constexpr int kSelectBins = 2048;
// Logits that a thread holds at the end of a search.
inline constexpr int kSelectOwn = 16;

// CTAs per SM: what registers (64 to 72 per thread) and shared memory allow.
template <int kThreads>
inline constexpr int kSelectBlocks = kThreads == 128 ? 7 : 1024 / kThreads;

// Neighbouring threads read words at power-of-two distances: one word in 33 is left out against bank conflicts.
__device__ __forceinline__ int padded(int word) { return word + word / 32; }

template <int kThreadCount>
struct SelectShared {
  static constexpr int kThreads = kThreadCount;
  __device__ static void sync() { __syncthreads(); }
  // Entries in the list at the end of a search: more do not fit in 48 KB of shared memory.
  static constexpr int kList = kThreads * kSelectOwn < 4096 ? kThreads * kSelectOwn : 4096;
  // Words of the bitmap from which entries are written in order, and the entries that it covers.
  static constexpr int kWords = 2 * kList;
  static constexpr int kSegment = 32 * kWords;

  union alignas(16) {
    uint64_t list[kList];
    struct {
      float logits[kList];
      int32_t entries[kList];
    } found;
    uint32_t words[kWords + kWords / 32];
  };
  alignas(16) uint32_t bins[kSelectBins];
  uint32_t warp_sums[kThreads / 32];
  uint32_t list_count, last_count;
  static constexpr int kLast = kThreads < 256 ? kThreads : 256;
  uint64_t last[kLast];
  uint32_t low, high;  // the smallest and the largest logit of the list
  // The bin of the k-th rank; how many ranks lie in higher bins, and in this bin.
  uint32_t bin, above, count;
  uint64_t threshold;
};

// Digits of a rank from the top: the last bit of each.
inline constexpr int kNumDigits = 6;
__device__ __forceinline__ int digit_shift(int digit) {
  constexpr int kShifts[kNumDigits] = {53, 42, 32, 21, 10, 0};
  return kShifts[digit];
}

// The digit of nearly every row's only pass, as a compile-time constant.
using FirstDigit = std::integral_constant<int, 0>;

// Whether the digits before `digit` are those of `prefix`.
__device__ __forceinline__ bool shares_digits(uint64_t rank, int digit, uint64_t prefix) {
  return digit == 0 || rank >> digit_shift(digit - 1) == prefix;
}
__device__ __forceinline__ uint32_t digit_of(uint64_t rank, int digit) {
  const uint32_t bins = digit == 2 || digit == 5 ? 1024 : 2048;
  return static_cast<uint32_t>(rank >> digit_shift(digit)) & (bins - 1);
}

__device__ __forceinline__ uint64_t rank_of(float logit, int entry) {
  return uint64_t{order_key(logit)} << 32 | ~static_cast<uint32_t>(entry);
}
// Loads entries i ... i + 3 of a row, i a multiple of 4; nothing from `end` on.
__device__ __forceinline__ float4 load_quad(const SelectArgs& a, const float* row, int64_t i, int end) {
  if (a.aligned && i + 4 <= end) return *reinterpret_cast<const float4*>(row + i);
  return make_float4(i < end ? row[i] : 0.0f, i + 1 < end ? row[i + 1] : 0.0f, i + 2 < end ? row[i + 2] : 0.0f,
                     i + 3 < end ? row[i + 3] : 0.0f);
}
__device__ __forceinline__ int entry_of(uint64_t rank) { return static_cast<int>(~static_cast<uint32_t>(rank)); }

// Reserves room for `mine` more entries in `count`; returns where the thread's room begins. One atomic addition per warp, called by all its
// lanes.
__device__ __forceinline__ uint32_t reserve(uint32_t& count, uint32_t mine) {
  const int lane = threadIdx.x % 32;
  const uint32_t sum = lanes_up_to(mine);
  uint32_t at = 0;
  if (lane == 31 && sum > 0) at = atomicAdd(&count, sum);
  return __shfl_sync(kAllLanes, at, 31) + sum - mine;
}

// The sum of `v` over the threads before this one, of the kThreads that Shared::sync() synchronises; `total` over all. Has one barrier
// inside; another is needed before the next call.
template <class Shared>
__device__ __forceinline__ uint32_t exclusive_sum(Shared& s, uint32_t v, uint32_t& total) {
  constexpr int kWarps = Shared::kThreads / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t sum = lanes_up_to(v);
  if (lane == 31) s.warp_sums[warp] = sum;
  Shared::sync();
  const uint32_t sums = lanes_up_to<kWarps>(lane < kWarps ? s.warp_sums[lane] : 0);
  total = __shfl_sync(kAllLanes, sums, kWarps - 1);
  const uint32_t before = __shfl_sync(kAllLanes, sums, warp == 0 ? 0 : warp - 1);
  return (warp == 0 ? 0 : before) + sum - v;
}

// Sets s.bin, s.above and s.count for the `need`-th largest of what `bins` counts.
template <class Shared>
__device__ __forceinline__ void find_bin(Shared& s, const uint32_t* bins, uint32_t need) {
  // Threads go down from the highest bins.
  constexpr int kOwn = kSelectBins / Shared::kThreads;
  const int first = kSelectBins - kOwn * (static_cast<int>(threadIdx.x) + 1);
  uint32_t counts[kOwn], sum = 0, total;
#pragma unroll
  for (int i = 0; i < kOwn; i += 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(bins + first + i);
    counts[i] = v.x;
    counts[i + 1] = v.y;
    sum += v.x + v.y;
  }
  uint32_t above = exclusive_sum(s, sum, total);
  if (above < need && need <= above + sum) {
#pragma unroll
    for (int i = kOwn - 1; i >= 0; --i) {
      if (above < need && need <= above + counts[i]) {
        s.bin = static_cast<uint32_t>(first + i);
        s.above = above;
        s.count = counts[i];
      }
      above += counts[i];
    }
  }
  Shared::sync();
}

template <class Shared>
__device__ __forceinline__ void clear_bins(Shared& s) {
  for (int i = 4 * static_cast<int>(threadIdx.x); i < kSelectBins; i += 4 * Shared::kThreads)
    *reinterpret_cast<uint4*>(s.bins + i) = make_uint4(0, 0, 0, 0);
}

// Sets s.threshold to the `need`-th largest of `count` ranks. If all are needed, this is `least`, a lower bound of all. Otherwise count is
// at most Shared::kLast, and for_each(add) passes the ranks.
template <class Shared, class ForEach>
__device__ __forceinline__ void take_last(Shared& s, uint32_t need, uint32_t count, uint64_t least, ForEach&& for_each) {
  if (count == need) {
    if (threadIdx.x == 0) s.threshold = least;
    return;
  }
  for_each([&](uint64_t rank) { s.last[atomicAdd(&s.last_count, 1u)] = rank; });
  __syncthreads();
  if (threadIdx.x < count) {
    const uint64_t mine = s.last[threadIdx.x];
    uint32_t larger = 0;
    for (uint32_t i = 0; i < count; ++i) larger += s.last[i] > mine;
    if (larger == need - 1) s.threshold = mine;
  }
}

// The `need`-th largest of the ranks in the list, which share the digits before `digit`. One CTA.
template <class Shared>
__device__ __noinline__ void resolve_list(Shared& s, int digit, uint64_t prefix, uint32_t need, uint32_t count) {
  const uint32_t entries = s.list_count;
  for (; count != need && count > 32; ++digit) {
    clear_bins(s);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < entries; i += Shared::kThreads) {
      const uint64_t rank = s.list[i];
      if (shares_digits(rank, digit, prefix)) atomicAdd(&s.bins[digit_of(rank, digit)], 1u);
    }
    __syncthreads();
    find_bin(s, s.bins, need);
    prefix = digit == 2 || digit == 5 ? prefix << 10 | s.bin : prefix << 11 | s.bin;
    need -= s.above;
    count = s.count;
  }
  take_last(s, need, count, prefix << digit_shift(digit - 1), [&](auto&& add) {
    for (uint32_t i = threadIdx.x; i < entries; i += Shared::kThreads) {
      const uint64_t rank = s.list[i];
      if (shares_digits(rank, digit, prefix)) add(rank);
    }
  });
}

}  // namespace strata::cuda
