// State rows and their softmax-weighted sums.
#pragma once

#include <cstdint>

#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"

namespace strata::cuda {

// A partial softmax-weighted sum: weights are relative to exp(weight_base(peak)).
struct Pooled {
  float peak, sum, weighted;
};

// A peak of -inf (no row, or only such scores) counts as 0: the sum is then 0 and not NaN.
__device__ __forceinline__ float weight_base(float peak) { return peak == -INFINITY ? 0.0f : peak; }

constexpr float kLog2E = 1.44269504088896341f;

// exp(score - base). The rounding of base * log2(e) is the same factor in every weight of a channel.
__device__ __forceinline__ float weight_of(float score, float base) { return ptx::ex2(fmaf(score, kLog2E, -base * kLog2E)); }

// Combines partial(0), partial(1), ...: none waits for the sum of the earlier ones.
template <int kPartials, class Partial>
__device__ __forceinline__ Pooled combine(const Partial& partial) {
  Pooled all{partial(0).peak, 0.0f, 0.0f};
#pragma unroll
  for (int i = 1; i < kPartials; ++i) all.peak = fmaxf(all.peak, partial(i).peak);
  const float base = weight_base(all.peak);
#pragma unroll
  for (int i = 0; i < kPartials; ++i) {
    const Pooled p = partial(i);
    const float factor = weight_of(p.peak, base);
    all.sum = fmaf(p.sum, factor, all.sum);
    all.weighted = fmaf(p.weighted, factor, all.weighted);
  }
  return all;
}

// Where a thread's values of kRows rows begin: row i at `row` of lane i, the thread's values at float column(i).
template <int kRows>
struct RowAddresses {
  const uint8_t* values[kRows];

  template <class Column>
  __device__ __forceinline__ void find(const uint8_t* row, const Column& column) {
    const auto address = reinterpret_cast<unsigned long long>(row);
#pragma unroll
    for (int i = 0; i < kRows; ++i) values[i] = reinterpret_cast<const uint8_t*>(__shfl_sync(kAllLanes, address, i)) + 4 * column(i);
  }
};

// kChannels channels of kRows rows of a thread: all loads are in flight before the first is waited for. kAligned: rows are 16-byte aligned.
template <int kRows, int kChannels, bool kAligned>
struct RowVectors {
  uint32_t value[kRows][kChannels], score[kRows][kChannels];

  static __device__ __forceinline__ void load_vector(const uint8_t* p, uint32_t (&words)[kChannels]) {
    if constexpr (!kAligned) {
      load_words(p, words);
    } else if constexpr (kChannels == 2) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      words[0] = v.x, words[1] = v.y;
    } else {
      const uint4 v = *reinterpret_cast<const uint4*>(p);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    }
  }

  // Loads the first kCount rows. Scores are to_scores bytes after their values.
  template <int kCount = kRows>
  __device__ __forceinline__ void load(const RowAddresses<kRows>& from, int to_scores) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      load_vector(from.values[i], value[i]);
      load_vector(from.values[i] + to_scores, score[i]);
    }
  }

  // Drops the first `rows` rows.
  __device__ __forceinline__ void drop(int rows) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        value[i][j] = i < rows ? 0 : value[i][j];
        score[i][j] = i < rows ? 0xFF800000u : score[i][j];  // -inf: weight 0
      }
    }
  }

  __device__ __forceinline__ Pooled pool(int channel) const {
    float peak = __uint_as_float(score[0][channel]);
#pragma unroll
    for (int i = 1; i < kRows; ++i) peak = fmaxf(peak, __uint_as_float(score[i][channel]));
    const float base = weight_base(peak);
    Pooled all{peak, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float weight = weight_of(__uint_as_float(score[i][channel]), base);
      all.sum += weight;
      all.weighted = fmaf(weight, __uint_as_float(value[i][channel]), all.weighted);
    }
    return all;
  }

  // Adds the rows to earlier rows.
  __device__ __forceinline__ void add_to(Pooled& all, int channel) const {
    const float before = all.peak;
#pragma unroll
    for (int i = 0; i < kRows; ++i) all.peak = fmaxf(all.peak, __uint_as_float(score[i][channel]));
    const float base = weight_base(all.peak), factor = weight_of(before, base);
    all.sum *= factor;
    all.weighted *= factor;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float weight = weight_of(__uint_as_float(score[i][channel]), base);
      all.sum += weight;
      all.weighted = fmaf(weight, __uint_as_float(value[i][channel]), all.weighted);
    }
  }
};

}  // namespace strata::cuda
