// The k largest of one long row from the candidates that the logits kernel's CTAs wrote (candidates.cuh): V4 10.4. One CTA, on an SM that
// the logits kernel leaves free, so that it already waits there when the last logit is written.
//
// The k-th key is found by histograms of the candidates. Bitmaps of the entries above it and of those equal to it, in the row's order, give
// the position of each entry, and which of the equal ones are selected. If CTAs had more entries down to that key than they wrote, all
// their entries from that key on are read from the logits, and the search is repeated. Little of the code runs twice: it is fetched from
// memory.
//
// Floor: latencies. 262144 rows, H200, after the last candidate: starts 0.4 us later, has read them 0.7, key 1.3, bitmap 0.8, lines summed
// 0.4, written 0.5.
#pragma once

#include "backends/cuda/indexer/select.cuh"
#include "backends/cuda/indexer/select_slots.cuh"
#include "backends/cuda/indexer/sm90/candidates.cuh"
#include "backends/cuda/indexer/sm90/select_few_rows.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"

namespace strata::cuda::sm90 {

struct SelectCandidatesShared {
  static constexpr int kThreads = kCandidatesThreads, kFew = 64, kMore = 4096, kTaken = 2 * kMore;
  __device__ static void sync() { __syncthreads(); }
  union {
    struct {
      alignas(16) uint32_t bins[kSelectBins];
      uint32_t low[kThreads / 32], high[kThreads / 32];
      uint32_t few[kFew];
      uint32_t few_count, key, equal;
      uint32_t warp_sums[kThreads / 32];
      uint32_t bin, above, count;
      // Entries that CTAs did not write.
      uint32_t more_keys[kMore], more_entries[kMore];
      uint32_t more_count, incomplete_count;
      uint16_t incomplete[kThreads];
      uint32_t taken[kTaken];  // entries that reach the k-th key, and whether they equal it
      uint32_t taken_count;
    };
    SelectShared<kThreads> whole;
  };
  // Per line of 128 entries how many are above, and in the upper half how many are equal; later the sums of earlier lines.
  alignas(16) uint32_t lines[kCandidatesMaxRows / 128];
  // Followed by the bitmaps, alternating lines of 4 words: above, equal.
  __device__ uint4* bits() { return reinterpret_cast<uint4*>(this + 1); }
};
inline size_t select_candidates_bytes(int64_t columns) {
  return std::max(static_cast<size_t>(sizeof(SelectCandidatesShared) + (columns + 127) / 128 * 32),
                  sizeof(FewRowsShared<kCandidatesThreads>));
}

// Bits of a line before one of its entries.
__device__ __forceinline__ uint32_t bits_before(const uint4& line, uint32_t bit) {
  const auto below = [&](uint32_t word, uint32_t first) {
    return bit >= first + 32 ? __popc(word) : bit > first ? __popc(word << (32 - (bit - first))) : 0;
  };
  return below(line.x, 0) + below(line.y, 32) + below(line.z, 64) + below(line.w, 96);
}

__device__ __noinline__ void select_without_candidates(SelectShared<kCandidatesThreads>& s, const SelectArgs& a) { select_row(s, a, 0); }

// Sets s.key to the `need`-th largest of the keys that for_each(f) passes, those of this thread (0: none), and s.equal to how many of the
// `need` largest equal it. Or key is one less than the smallest of these and equal is 0. False: there are fewer. bins are cleared,
// s.few_count is 0.
template <class ForEach>
__device__ __forceinline__ bool find_key(SelectCandidatesShared& s, uint32_t need, ForEach&& for_each) {
  using Shared = SelectCandidatesShared;
  constexpr int kWarps = Shared::kThreads / 32;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  uint32_t low = 0xFFFFFFFFu, high = 0;
  for_each([&](uint32_t key) {
    high = max(high, key);
    low = min(low, key - 1);  // "none" becomes the largest number
  });
  low = __reduce_min_sync(kAllLanes, low);
  high = __reduce_max_sync(kAllLanes, high);
  if (lane == 0) s.low[warp] = low, s.high[warp] = high;
  if (thread == 0) s.count = 0;
  __syncthreads();
  low = __reduce_min_sync(kAllLanes, s.low[lane % kWarps]) + 1;
  high = __reduce_max_sync(kAllLanes, s.high[lane % kWarps]);
  for (uint32_t width = high - low; high > 0;) {
    const int shift = max(0, 21 - __clz(static_cast<int>(width)));
    for_each([&](uint32_t key) {
      if (key >= low && key - low <= width) atomicAdd(&s.bins[(key - low) >> shift], 1u);
    });
    __syncthreads();
    find_bin(s, s.bins, need);
    const uint32_t count = s.count;
    if (count == 0) return false;
    low += s.bin << shift;
    need -= s.above;
    if (shift == 0 || count == need) {  // `low` itself, or all from there on
      if (thread == 0) {
        s.key = shift == 0 ? low : low - 1;
        s.equal = shift == 0 ? need : 0;
      }
      break;
    }
    width = (1u << shift) - 1;
    if (count <= Shared::kFew) {
      for_each([&](uint32_t key) {
        if (key >= low && key - low <= width) s.few[atomicAdd(&s.few_count, 1u)] = key;
      });
      __syncthreads();
      if (thread < static_cast<int>(count)) {
        const uint32_t mine = s.few[thread];
        uint32_t above = 0, reach = 0;
#pragma unroll 4
        for (uint32_t i = 0; i < count; ++i) {
          above += s.few[i] > mine ? 1 : 0;
          reach += s.few[i] >= mine ? 1 : 0;
        }
        if (above < need && need <= reach) s.key = mine, s.equal = need - above;
      }
      break;
    }
    __syncthreads();  // all threads have read the count
    clear_bins(s);
    if (thread == 0) s.count = 0;
    __syncthreads();
  }
  __syncthreads();
  return high > 0;
}

// Lists all keys from `least` on of the CTAs that have not written all of these (limit, of the thread-th CTA).
__device__ __noinline__ void list_incomplete(SelectCandidatesShared& s, const SelectArgs& a, const Candidates& candidates, uint32_t limit,
                                             uint32_t least, int n) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) s.few_count = s.incomplete_count = s.more_count = 0;
  clear_bins(s);
  __syncthreads();
  if (limit > least) s.incomplete[atomicAdd(&s.incomplete_count, 1u)] = static_cast<uint16_t>(thread);
  __syncthreads();
  const int tiles = (n + kTileRows - 1) / kTileRows, each = (tiles + candidates.blocks - 1) / candidates.blocks;
  const int incomplete_tiles = static_cast<int>(s.incomplete_count) * each;
#pragma unroll 4
  for (int i = warp; i < incomplete_tiles; i += SelectCandidatesShared::kThreads / 32) {
    const int entry = (s.incomplete[i / each] + i % each * candidates.blocks) * kTileRows + 2 * lane;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t key = entry + e < n ? order_key(a.logits[entry + e]) : 0;
      if (key < least) continue;
      const uint32_t at = atomicAdd(&s.more_count, 1u);
      if (at < SelectCandidatesShared::kMore) s.more_keys[at] = key, s.more_entries[at] = static_cast<uint32_t>(entry + e);
    }
  }
  __syncthreads();
}

template <int kQuads>  // of a thread
__global__ void __launch_bounds__(kCandidatesThreads)
    topk_select_candidates_kernel(const __grid_constant__ SelectArgs a, const __grid_constant__ Candidates candidates) {
  using Shared = SelectCandidatesShared;
  constexpr int kThreads = kCandidatesThreads;
  extern __shared__ __align__(128) uint8_t dynamic[];
  auto& s = *reinterpret_cast<Shared*>(dynamic);
  const int thread = static_cast<int>(threadIdx.x);
  const int n = a.lengths[0], lines = (n + 127) / 128;  // of 128 entries
  if (n <= kFewRowsEntries) {                           // no candidates were written
    return take_few_row<kThreads, kFewRowsEntries / kThreads / 4>(*reinterpret_cast<FewRowsShared<kThreads>*>(dynamic), a, 0, n);
  }
  uint4* const bits = s.bits();
  for (int i = thread; i < 2 * lines; i += kThreads) bits[i] = uint4{};
  for (int i = 4 * thread; i < lines; i += 4 * kThreads) *reinterpret_cast<uint4*>(s.lines + i) = uint4{};
  clear_bins(s);
  if (thread == 0) s.few_count = s.taken_count = 0;
  const auto k = static_cast<uint32_t>(a.k);
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  if (n <= a.k) {
    for (int i = thread; i < a.k; i += kThreads) a.topk[i] = i < n ? i : -1;
    return write_slots(a, 0, n);
  }
  uint32_t keys[4 * kQuads], entries[4 * kQuads], limits[kQuads];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    constexpr int kBlockQuads = kCandidateSlots / 4;
    const int at = thread + kThreads * q;
    uint4 v{}, w{};
    limits[q] = 0;
    if (at < candidates.blocks * kBlockQuads) {
      v = reinterpret_cast<const uint4*>(candidates.keys)[at];
      w = reinterpret_cast<const uint4*>(candidates.entries)[at];
      limits[q] = candidates.limits[at / kBlockQuads];
    }
    keys[4 * q] = v.x, keys[4 * q + 1] = v.y, keys[4 * q + 2] = v.z, keys[4 * q + 3] = v.w;
    entries[4 * q] = w.x, entries[4 * q + 1] = w.y, entries[4 * q + 2] = w.z, entries[4 * q + 3] = w.w;
  }
  uint32_t limit = 0;
#pragma unroll
  for (const uint32_t l : limits) limit = max(limit, l);
  const auto own = [&](auto&& f) {
#pragma unroll
    for (const uint32_t key : keys) f(key);
  };
  bool found = find_key(s, k, own);
  // The smallest selected key, and whether its CTA has written all keys from there on.
  const auto least = [&] { return s.equal > 0 ? s.key : s.key + 1; };
  uint32_t more = 0;
  if (__syncthreads_or(found && limit > least()) != 0) {
    const uint32_t from = least();
    list_incomplete(s, a, candidates, thread < candidates.blocks ? candidates.limits[thread] : 0, from, n);
    more = s.more_count;
#pragma unroll
    for (int e = 0; e < 4 * kQuads; ++e) keys[e] = limits[e / 4] > from ? 0 : keys[e];
    found = more <= Shared::kMore && find_key(s, k, [&](auto&& f) {
              own(f);
              for (uint32_t i = thread; i < more; i += kThreads) f(s.more_keys[i]);
            });
  }
  if (!found) {
    __syncthreads();
    select_without_candidates(s.whole, a);
    return write_slots(a, 0, n);
  }
  const uint32_t key = s.key, equal = s.equal;
  // Few instructions, each executed once: they are fetched from memory.
  uint32_t reach = 0;
#pragma unroll
  for (int e = 0; e < 4 * kQuads; ++e) reach |= (keys[e] >= key && keys[e] > 0 ? 1u : 0u) << e;
  uint32_t to = reserve(s.taken_count, __popc(reach));
#pragma unroll
  for (int e = 0; e < 4 * kQuads; ++e) {
    if ((reach >> e & 1) != 0) s.taken[to++] = entries[e] << 1 | (keys[e] == key ? 1u : 0u);
  }
#pragma unroll 1
  for (uint32_t i = thread; i < more; i += kThreads) {
    if (s.more_keys[i] >= key) s.taken[atomicAdd(&s.taken_count, 1u)] = s.more_entries[i] << 1 | (s.more_keys[i] == key ? 1u : 0u);
  }
  __syncthreads();
  const uint32_t taken = s.taken_count;
#pragma unroll 1
  for (uint32_t i = thread; i < taken; i += kThreads) {
    const uint32_t entry = s.taken[i] >> 1, is_equal = s.taken[i] & 1;
    auto* const words = reinterpret_cast<uint32_t*>(bits + entry / 128 * 2 + is_equal);
    atomicOr(words + entry / 32 % 4, 1u << entry % 32);
    atomicAdd(&s.lines[entry / 128], is_equal != 0 ? 0x10000u : 1u);
  }
  __syncthreads();
  constexpr int kOwn = 4;
  uint32_t in_front = 0;
  for (int first = 0; first < lines; first += kOwn * kThreads) {  // once for 262144 rows
    auto& own_lines = *reinterpret_cast<uint4*>(s.lines + first + kOwn * thread);
    const uint4 v = first + kOwn * thread < lines ? own_lines : uint4{};
    uint32_t total;
    if (first > 0) __syncthreads();
    const uint32_t before = in_front + exclusive_sum(s, v.x + v.y + v.z + v.w, total);
    if (first + kOwn * thread < lines) own_lines = make_uint4(before, before + v.x, before + v.x + v.y, before + v.x + v.y + v.z);
    in_front += total;
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = thread; i < taken; i += kThreads) {
    const uint32_t entry = s.taken[i] >> 1, line = entry / 128, base = s.lines[line];
    const uint32_t above = (base & 0xFFFFu) + bits_before(bits[2 * line], entry % 128);
    const uint32_t passed = (base >> 16) + bits_before(bits[2 * line + 1], entry % 128);
    if ((s.taken[i] & 1) == 0 || passed < equal) a.topk[above + min(passed, equal)] = static_cast<int32_t>(entry);
  }
  write_slots(a, 0, n);
}

}  // namespace strata::cuda::sm90
