// The k largest of a row for any values and any k: the fallback when the sampled search (select.cuh) gives up.
//
// The k-th largest rank is found digit by digit from a histogram of the whole row. Once few entries share the digits so far, they are
// collected and the rest is found among them. A last pass marks entries that reach the threshold in a bitmap, from which the entries are
// written in ascending order.
#pragma once

#include "backends/cuda/indexer/select_common.cuh"

namespace strata::cuda {

// Calls f(rank, or 0 from `end` on, entry) for 4 consecutive entries at a time of [begin, end), which begins at a multiple of 4. Every
// thread of a warp makes the same calls. Ranks are above 0.
template <int kThreads, class F>
__device__ __forceinline__ void for_each_quad(const SelectArgs& a, const float* row, int begin, int end, F&& f) {
  constexpr int kBatch = 4;  // loads in flight
  for (int64_t first = begin; first < end; first += 4 * kThreads * kBatch) {
    float4 quads[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      quads[b] = load_quad(a, row, first + 4 * (kThreads * b + static_cast<int>(threadIdx.x)), end);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int64_t i = first + 4 * (kThreads * b + static_cast<int>(threadIdx.x));
      if (i - 4 * static_cast<int>(threadIdx.x % 32) >= end) continue;  // no entry of this warp
      const float v[4] = {quads[b].x, quads[b].y, quads[b].z, quads[b].w};
      uint64_t ranks[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) ranks[e] = i + e < end ? rank_of(v[e], static_cast<int>(i) + e) : 0;
      f(ranks, static_cast<int>(i));
    }
  }
}

// Sets s.threshold to the k-th largest rank of the row; n > k.
template <int kThreads>
__device__ __forceinline__ void find_threshold(SelectShared<kThreads>& s, const SelectArgs& a, const float* row, int n) {
  uint64_t prefix = 0;
  auto need = static_cast<uint32_t>(a.k);
  for (int digit = 0;; ++digit) {
    __syncthreads();  // the bins have been read
    clear_bins(s);
    if (threadIdx.x == 0) s.list_count = s.last_count = 0;
    __syncthreads();
    const auto count_digits = [&](auto constant) {
      for_each_quad<kThreads>(a, row, 0, n, [&](const uint64_t(&ranks)[4], int) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (ranks[e] != 0 && shares_digits(ranks[e], constant, prefix)) atomicAdd(&s.bins[digit_of(ranks[e], constant)], 1u);
        }
      });
    };
    digit == 0 ? count_digits(FirstDigit{}) : count_digits(digit);
    __syncthreads();
    find_bin(s, s.bins, need);
    prefix = digit == 2 || digit == 5 ? prefix << 10 | s.bin : prefix << 11 | s.bin;
    need -= s.above;
    const uint32_t count = s.count;
    if (count == need) {
      if (threadIdx.x == 0) s.threshold = prefix << digit_shift(digit);
      break;
    }
    if (count <= SelectShared<kThreads>::kList) {
      const auto collect = [&](auto constant) {
        for_each_quad<kThreads>(a, row, 0, n, [&](const uint64_t(&ranks)[4], int) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (ranks[e] != 0 && ranks[e] >> digit_shift(constant) == prefix) s.list[atomicAdd(&s.list_count, 1u)] = ranks[e];
          }
        });
      };
      digit == 0 ? collect(FirstDigit{}) : collect(digit);
      __syncthreads();
      resolve_list(s, digit + 1, prefix, need, count);
      break;
    }
  }
  __syncthreads();
}

// Writes the entries of [begin, end) that reach the threshold, ascending, to out[0 ...]; returns their number. At most
// SelectShared<kThreads>::kSegment entries.
template <int kThreads>
__device__ __forceinline__ uint32_t write_selected(SelectShared<kThreads>& s, const SelectArgs& a, const float* row, int begin, int end,
                                                   uint64_t threshold, int32_t* out) {
  for_each_quad<kThreads>(a, row, begin, end, [&](const uint64_t(&ranks)[4], int i) {
    uint32_t word = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) word |= (ranks[e] >= threshold ? 1u : 0u) << e;
    word <<= i % 32;
#pragma unroll
    for (int step = 1; step < 8; step *= 2) word |= __shfl_xor_sync(kAllLanes, word, step);
    if (threadIdx.x % 8 == 0 && i < end) s.words[padded((i - begin) / 32)] = word;
  });
  __syncthreads();
  const int words = (end - begin + 31) / 32;
  uint32_t position = 0;
  for (int first = 0; first < words; first += kThreads) {
    __syncthreads();  // the previous sums have been read
    const int w = first + static_cast<int>(threadIdx.x);
    uint32_t word = w < words ? s.words[padded(w)] : 0, total;
    uint32_t at = position + exclusive_sum(s, __popc(word), total);
    for (; word != 0; word &= word - 1) out[at++] = begin + 32 * w + __ffs(static_cast<int>(word)) - 1;
    position += total;
  }
  return position;
}

// Not inlined: it would double the code that rows usually execute.
template <int kThreads>
__device__ __noinline__ void select_exhaustively(SelectShared<kThreads>& s, const SelectArgs& a, const float* row, int n, int32_t* out) {
  constexpr int kSegment = SelectShared<kThreads>::kSegment;
  find_threshold(s, a, row, n);
  const uint64_t threshold = s.threshold;
  for (int64_t first = 0; first < n; first += kSegment) {
    const auto last = static_cast<int>(first + kSegment < n ? first + kSegment : n);
    out += write_selected(s, a, row, static_cast<int>(first), last, threshold, out);
    __syncthreads();  // the bitmap has been read
  }
}

}  // namespace strata::cuda
