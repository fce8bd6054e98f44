// The k largest of a few rows of logits that a CTA's registers hold, one CTA per row: V4 10.4. Like select_held.cuh, but a row's
// time is the latency of dependent steps, and in a layer also of fetching their code from memory: a layer's weights evict it from
// L2.
//
// So the code is as short as possible, with rare cases moved out. A thread has consecutive entries of the row: the bits of its
// selection are in order, and the number of earlier selected entries is all that it needs to write them.
//
// Floor: the row once from L2, and the latency of six barriers and of what is between them.
#pragma once

#include "backends/cuda/indexer/select_exhaustive.cuh"
#include "backends/cuda/indexer/select_slots.cuh"
#include "backends/cuda/indexer/select_steps.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"

namespace strata::cuda::sm90 {

inline constexpr uint32_t kFewRowsBetween = 64;  // entries whose ranks are compared, approximately

template <int kThreads>
struct FewRowsShared {
  static constexpr int kWarps = kThreads / 32;
  static constexpr uint32_t kLast = 256;
  union {
    struct {
      alignas(16) uint32_t bins[kStepBins];
      alignas(16) uint64_t last[kLast];                        // ranks, then 0
      uint2 extremes[kWarps];                                  // order keys, of each warp
      uint32_t counts[kWarps], above[kWarps], chosen[kWarps];  // per warp: entries in its bins, above the step of the k-th, and selected
      int32_t offset[kThreads];                                // WordSlots, of each thread's entries
      bool taken[kLast];                                       // of `last`
      uint32_t last_count;
    };
    SelectShared<kThreads> exhaustive;
  };
};

// Not inlined: rows of at most k entries, and rows whose counts do not fit.
template <int kThreads>
__device__ __noinline__ void select_noinline(SelectShared<kThreads>& s, const SelectArgs& a, int64_t token, int n) {
  int32_t* const out = a.topk + token * a.topk_stride;
  if (n > a.k) {
    select_exhaustively(s, a, a.logits + token * a.logits_stride, n, out);
  } else {
    for (auto i = static_cast<int>(threadIdx.x); i < a.k; i += kThreads) out[i] = i < n ? i : -1;
  }
  write_slots(a, token, n);
}
inline __device__ __noinline__ void write_slots_noinline(const SelectArgs& a, int64_t token, int n) { write_slots(a, token, n); }

// 4 kQuads consecutive numbers of a row of n per thread; NaN after the end.
template <int kQuads>
struct OwnNumbers {
  static constexpr int kCount = 4 * kQuads;
  const uint32_t n, first;  // of the thread's
  float v[kCount];

  __device__ OwnNumbers(const float* row, uint32_t n) : n(n), first(kCount * threadIdx.x) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float4 quad = ptx::load_quad_if(first + 4 * q < n, row + first + 4 * q, NAN);  // rows end with whole quads
      v[4 * q] = quad.x, v[4 * q + 1] = quad.y, v[4 * q + 2] = quad.z, v[4 * q + 3] = quad.w;
    }
    if (first >= n || n >= first + kCount) return;
#pragma unroll
    for (int e = 0; e < kCount; ++e) v[e] = first + e < n ? v[e] : NAN;
  }

  // The largest of the thread's numbers, and a value such that k of the row's numbers reach the smallest of all threads' values (unless
  // some are NaN). The value is the smallest of the maxima of groups, of which there are k, or of the numbers themselves.
  __device__ __forceinline__ void extremes(uint32_t k, float& least, float& largest) const {
    float m[kQuads];
#pragma unroll
    for (int q = 0; q < kQuads; ++q) m[q] = fmaxf(fmaxf(v[4 * q], v[4 * q + 1]), fmaxf(v[4 * q + 2], v[4 * q + 3]));
    least = m[0], largest = m[0];
#pragma unroll
    for (int q = 1; q < kQuads; ++q) least = fminf(least, m[q]), largest = fmaxf(largest, m[q]);
    if (n >= 8 * k) {
      least = fmaxf(m[0], m[1]);
#pragma unroll
      for (int q = 2; q < kQuads; q += 2) least = fminf(least, fmaxf(m[q], m[q + 1]));
    }
    if (n >= kCount * k) least = largest;
    if (n >= 2 * kCount * k) least = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    if (n < 4 * k) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) least = fminf(least, v[e]);
    }
  }

  __device__ __forceinline__ uint64_t rank(uint32_t bit) const {
    float x = v[0];
#pragma unroll
    for (int e = 1; e < kCount; ++e) x = bit == e ? v[e] : x;
    return rank_of(x, static_cast<int>(first + bit));
  }
};

// The bin of the k-th from above, and how many share it. Two barriers; false, for all threads, if there are fewer.
template <int kThreads>
__device__ __forceinline__ bool find_few_rows_bin(FewRowsShared<kThreads>& s, uint32_t k, int& bin, uint32_t& count) {
  constexpr int kWarps = kThreads / 32, kBins = kStepBins / kThreads;  // of a thread
  struct alignas(4 * kBins) Bins {
    uint32_t count[kBins];
    __device__ uint32_t sum() const {
      uint32_t sum = 0;
#pragma unroll
      for (const uint32_t c : count) sum += c;
      return sum;
    }
  };
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // Warps have bins from above; so have their lanes.
  const auto bins_of = [&](int of_warp) { return *reinterpret_cast<const Bins*>(s.bins + kStepBins - kBins * (32 * of_warp + lane + 1)); };
  __syncthreads();
  const uint32_t sum = __reduce_add_sync(kAllLanes, bins_of(warp).sum());
  if (lane == 0) s.counts[warp] = sum;
  __syncthreads();
  const uint32_t of_warp = lane < kWarps ? s.counts[lane] : 0, up_to_warp = lanes_up_to<kWarps>(of_warp);
  const int group = __ffs(static_cast<int>(__ballot_sync(kAllLanes, lane < kWarps && up_to_warp >= k))) - 1;
  if (group < 0) return false;
  const Bins mine = bins_of(group);
  const uint32_t own = mine.sum(), up_to = __shfl_sync(kAllLanes, up_to_warp - of_warp, group) + lanes_up_to(own);
  const int at = __ffs(static_cast<int>(__ballot_sync(kAllLanes, up_to >= k))) - 1;
  uint32_t above = up_to - own;
#pragma unroll
  for (int i = kBins - 1; i >= 0; --i) {
    if (above < k) count = mine.count[i], bin = kStepBins - kBins * (32 * group + lane + 1) + i;
    above += mine.count[i];
  }
  bin = __shfl_sync(kAllLanes, bin, at);
  count = __shfl_sync(kAllLanes, count, at);
  return true;
}

// Registers per thread. With 64 there is room for 512 threads together with a CTA of the logits kernel, in every quarter of an SM. Twice
// the numbers per thread would prefer 64 too immediately after the logits; in a layer they do better with 80 (docs/kernels/indexer.md).
constexpr int few_rows_registers(int quads) { return quads > 4 ? 80 : 64; }

// What a row needs before its selection; the second function after lengths and pages are complete.
template <int kThreads>
__device__ __forceinline__ void prepare_few_rows(FewRowsShared<kThreads>& s) {
  const uint32_t thread = threadIdx.x;
  clear_words<kThreads, kStepBins>(s.bins);
  if (thread == 0) s.last_count = 0;
  if (thread < FewRowsShared<kThreads>::kLast / 2) *reinterpret_cast<uint4*>(s.last + 2 * thread) = uint4{};
}
template <int kThreads, int kQuads>
__device__ __forceinline__ void note_few_rows_pages(FewRowsShared<kThreads>& s, const SelectArgs& a, int64_t token) {
  s.offset[threadIdx.x] = WordSlots(a, token, static_cast<int>(OwnNumbers<kQuads>::kCount * threadIdx.x / 32)).offset;
}

// A prepared row of n entries: at most 4 kQuads kThreads, 16-byte aligned, whole quads.
template <int kThreads, int kQuads>
__device__ __forceinline__ void select_few_row(FewRowsShared<kThreads>& s, const SelectArgs& a, int64_t token, uint32_t n) {
  using Shared = FewRowsShared<kThreads>;
  using Own = OwnNumbers<kQuads>;
  const uint32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const auto k = static_cast<uint32_t>(a.k);
  if (n <= k) return select_noinline(s.exhaustive, a, token, static_cast<int>(n));

  const Own own(a.logits + token * a.logits_stride, n);
  float least, largest, upper = 0;
  own.extremes(k, least, largest);
  const uint32_t least_key = __reduce_min_sync(kAllLanes, own.first < n ? order_key(least) : 0xFFFFFFFFu);
  const uint32_t largest_key = __reduce_max_sync(kAllLanes, order_key(largest));
  if (lane == 0) s.extremes[warp] = make_uint2(least_key, largest_key);
  __syncthreads();
  const uint2 extremes = s.extremes[lane % Shared::kWarps];
  least = logit_of(__reduce_min_sync(kAllLanes, extremes.x));
  largest = logit_of(__reduce_max_sync(kAllLanes, extremes.y));

  // As in find_step().
  const auto bins = static_cast<uint32_t>(__cvta_generic_to_shared(s.bins));
  bool found;
#pragma unroll 1
  for (uint32_t before = 0;;) {  // how many shared the previous step
    const Steps steps(least, largest);
    found = before > 0;
    if (!steps.good()) break;
#pragma unroll
    for (const float v : own.v) count_value(bins, steps, v);
    int bin = 0;
    uint32_t count = 0;
    found = find_few_rows_bin<kThreads>(s, k, bin, count);
    if (!found) break;
    upper = least + (static_cast<float>(bin) + 0.75f) * steps.step;
    least = least + (static_cast<float>(bin) - 0.75f) * steps.step;
    if (count <= kFewRowsBetween || count == before) break;
    before = count;
    largest = upper;
    __syncthreads();  // the bins have been read
    clear_words<kThreads, kStepBins>(s.bins);
    __syncthreads();
  }

  // Bits of the thread's numbers that exceed a value: signs of differences; NaN has none.
  uint32_t chosen = 0, between = 0;
#pragma unroll
  for (int e = Own::kCount - 1; e >= 0; --e) {
    chosen = __funnelshift_l(__float_as_uint(upper - own.v[e]), chosen, 1);
    between = __funnelshift_l(__float_as_uint(least - own.v[e]), between, 1);
  }
  between &= ~chosen;
  const uint32_t above = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(__popc(chosen)));
  if (lane == 0) s.above[warp] = above;
  uint32_t listed = 0;
  if (between != 0) {  // few threads
    listed = atomicAdd(&s.last_count, static_cast<uint32_t>(__popc(between)));
#pragma unroll 1
    for (uint32_t rest = between, to = listed; rest != 0 && to < Shared::kLast; rest &= rest - 1, ++to)
      s.last[to] = own.rank(__ffs(static_cast<int>(rest)) - 1);
  }
  __syncthreads();
  const uint32_t need = k - __reduce_add_sync(kAllLanes, lane < Shared::kWarps ? s.above[lane] : 0), last = s.last_count;
  if (!found || need > last || last > Shared::kLast) {  // above k, `need` is beyond any count
    __syncthreads();                                    // all threads have read it: its memory is reused
    return select_noinline(s.exhaustive, a, token, static_cast<int>(n));
  }
  // Four lanes compare an entry with the others.
#pragma unroll 1
  for (uint32_t from = 0; from < last; from += kThreads / 4) {
    const uint32_t i = from + thread / 4;
    const uint64_t rank = i < last ? s.last[i] : 0;
    uint32_t larger = 0;
#pragma unroll 1
    for (uint32_t j = thread % 4; j < last; j += 4) larger += s.last[j] > rank;
    larger += __shfl_xor_sync(kAllLanes, larger, 1);
    larger += __shfl_xor_sync(kAllLanes, larger, 2);
    if (thread % 4 == 0 && i < last) s.taken[i] = larger < need;
  }
  __syncthreads();
#pragma unroll 1
  for (; between != 0; between &= between - 1, ++listed) {
    if (s.taken[listed]) chosen |= between & -between;
  }
  const uint32_t mine = __popc(chosen), up_to = lanes_up_to(mine);
  if (lane == 31) s.chosen[warp] = up_to;
  __syncthreads();
  uint32_t at = __reduce_add_sync(kAllLanes, lane < warp ? s.chosen[lane] : 0) + up_to - mine;
  int32_t* const out = a.topk + token * a.topk_stride;
  const bool has_slots = WordSlots::fit(a, token);
  int32_t* const slots = a.slots.slots + token * a.slots.slots_stride;
  const int32_t offset = s.offset[thread];
#pragma unroll 1
  for (; chosen != 0; chosen &= chosen - 1, ++at) {
    const auto entry = static_cast<int>(own.first) + __ffs(static_cast<int>(chosen)) - 1;
    out[at] = entry;
    if (has_slots) slots[at] = offset == WordSlots::kNone ? -1 : offset + entry;
  }
  if (!has_slots) return write_slots_noinline(a, token, static_cast<int>(n));
  write_slot_count(a, token, static_cast<int>(n));
}

// The whole selection, of a row whose length is complete.
template <int kThreads, int kQuads>
__device__ __forceinline__ void take_few_row(FewRowsShared<kThreads>& s, const SelectArgs& a, int64_t token, int n) {
  prepare_few_rows(s);
  note_few_rows_pages<kThreads, kQuads>(s, a, token);
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  select_few_row<kThreads, kQuads>(s, a, token, static_cast<uint32_t>(n));
}

// Rows have at most 4 kQuads kThreads entries.
template <int kThreads, int kQuads>
__global__ void __maxnreg__(few_rows_registers(kQuads)) topk_select_few_rows_kernel(const __grid_constant__ SelectArgs a) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  auto& s = *reinterpret_cast<FewRowsShared<kThreads>*>(dynamic);
  const int64_t token = blockIdx.x;
  prepare_few_rows<kThreads>(s);
  if (!a.after_logits) ptx::wait_for_previous_kernel();
  const auto n = static_cast<uint32_t>(a.lengths[token]);
  note_few_rows_pages<kThreads, kQuads>(s, a, token);
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  select_few_row<kThreads, kQuads>(s, a, token, n);
}

}  // namespace strata::cuda::sm90
