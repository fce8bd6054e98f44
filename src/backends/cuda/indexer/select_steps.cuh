// Finds where the k-th largest of many numbers lies. A histogram of equal steps covers the range from a floor that k numbers reach to the
// largest number. If many share the step of the k-th, another histogram covers that step alone.
//
// Rounding may put a number into the step next to its own, so the returned bounds are a quarter of a step away from it. Callers count what
// exceeds the bounds.
#pragma once

#include <cfloat>

#include "backends/cuda/indexer/select_common.cuh"

namespace strata::cuda {

inline constexpr int kStepBins = 1024;

// Equal steps from the smallest value to the largest.
struct Steps {
  static constexpr float kCount = kStepBins - 4;
  float least, per_width, step;
  __device__ Steps(float least, float largest) : least(least) {
    const float width = largest - least;
    per_width = __fdividef(1.0f, width);
    step = width * (1.0f / kCount);
  }
  // No infinities or NaN, and steps that differ.
  __device__ bool good() const { return per_width > 0.0f && per_width <= FLT_MAX && step > 0.0f && step <= FLT_MAX; }
};

// Counts a value in its step. Values below the smallest (or NaN) are counted in the first step; many meet there, but equal addresses are
// counted at once. The step's number is in the last bits of a float between 2^23 and 2^24. No comparisons, because these have half the
// rate.
__device__ __forceinline__ void count_value(uint32_t bins, const Steps& steps, float v) {
  float fraction;  // of the width, between 0 and 1
  asm("mul.rn.sat.f32 %0, %1, %2;" : "=f"(fraction) : "f"(v - steps.least), "f"(steps.per_width));
  const float position = fmaf(fraction, Steps::kCount, 8388608.0f);
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(bins - (0x4B000000u << 2) + (__float_as_uint(position) << 2)) : "memory");
}

struct BinOf {
  int bin;  // -1: there are fewer
  uint32_t count;
};

// The bin of the k-th from above. Each warp finds it.
__device__ __forceinline__ BinOf find_bin_of(const uint32_t* bins, uint32_t k) {
  static_assert(kStepBins == 32 * 32);
  const int lane = threadIdx.x % 32;
  const uint32_t* const own = bins + kStepBins - 32 * (lane + 1);
  uint32_t sum = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {  // lanes begin at different banks
    const uint4 v = *reinterpret_cast<const uint4*>(own + 4 * ((j + lane) % 8));
    sum += (v.x + v.y) + (v.z + v.w);
  }
  const uint32_t sums = lanes_up_to(sum);
  const int group = __ffs(static_cast<int>(__ballot_sync(kAllLanes, sums >= k))) - 1;
  if (group < 0) return {-1, 0};
  const uint32_t before = __shfl_sync(kAllLanes, sums - sum, group);
  const int highest = kStepBins - 32 * group - 1;
  const uint32_t count = bins[highest - lane];
  const int at = __ffs(static_cast<int>(__ballot_sync(kAllLanes, before + lanes_up_to(count) >= k))) - 1;
  return {highest - at, __shfl_sync(kAllLanes, count, at)};
}

template <int kThreads, int kWords>
__device__ __forceinline__ void clear_words(uint32_t* words) {
#pragma unroll
  for (int i = 0; i < kWords; i += 4 * kThreads) {
    const int at = i + 4 * static_cast<int>(threadIdx.x);
    if (at < kWords) *reinterpret_cast<uint4*>(words + at) = uint4{};
  }
}

// The counts of a CTA: kStepBins words, aligned to 16 bytes.
template <int kThreads>
struct StepCounts {
  uint32_t* const bins;
  __device__ void clear() const { clear_words<kThreads, kStepBins>(bins); }
  __device__ void sync() const { __syncthreads(); }
  // Valid after all threads have counted.
  __device__ const uint32_t* totals() const {
    sync();
    return bins;
  }
};

// Finds bounds: at least k numbers exceed `least` and fewer than k exceed `upper`, with about `few` between or, where many are equal, more.
// Returns false if that fails, because of numbers that are not finite. On entry `least` is a floor and counts are cleared, known to all
// threads. for_each(count) passes this thread's numbers. All threads get the same result.
template <class Counts, class ForEach>
__device__ __forceinline__ bool find_step(const Counts& counts, uint32_t k, uint32_t few, float& least, float largest, float& upper,
                                          ForEach&& for_each) {
  const auto bins = static_cast<uint32_t>(__cvta_generic_to_shared(counts.bins));
  for (uint32_t before = 0;;) {  // how many shared the previous step
    const Steps steps(least, largest);
    if (!steps.good()) return before > 0;
    for_each([&](float v) { count_value(bins, steps, v); });
    const BinOf of = find_bin_of(counts.totals(), k);
    if (of.bin < 0) return false;
    // A number's step is the nearest: half a step on both sides, and a quarter more.
    upper = least + (static_cast<float>(of.bin) + 0.75f) * steps.step;
    least = least + (static_cast<float>(of.bin) - 0.75f) * steps.step;
    if (of.count <= few || of.count == before) return true;
    before = of.count;
    largest = upper;
    counts.sync();  // the bins have been read
    counts.clear();
    counts.sync();
  }
}

}  // namespace strata::cuda
