// What parts of a head are merged by, in blocks of a cluster.
#pragma once

#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/sm90/sparse_decode/config.h"

namespace strata::cuda::sparse_decode {

// What is needed of a head of a part besides its sums: lse and maximum in base 2, and what its fp16 values are multiples of.
struct PartEnd {
  float lse, maximum;
  float unshift, unused;

  static __device__ __forceinline__ PartEnd none() { return {-INFINITY, -INFINITY, 0.0f, 0.0f}; }
};

struct MergedHead {
  float factor;        // by which the lane's part counts
  float lse, maximum;  // base 2
  bool empty;
};

// Of groups of kLanes lanes, each of which has a part of the group's head, or none.
template <int kLanes>
__device__ __forceinline__ MergedHead merge_ends(const PartEnd& end, float sink_log2) {
  const auto over_parts = [](float v, const auto& join) {
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) v = join(v, __shfl_xor_sync(~0u, v, step));
    return v;
  };
  const auto largest = [](float x, float y) { return fmaxf(x, y); };
  const float largest_lse = over_parts(end.lse, largest), maximum = over_parts(end.maximum, largest);
  const bool empty = largest_lse == -INFINITY;
  const float subtracted = empty ? 0.0f : largest_lse, weight = ptx::ex2(end.lse - subtracted);
  const float sum = over_parts(weight, [](float x, float y) { return x + y; });
  const float factor = empty ? 0.0f : weight * end.unshift * ptx::rcp(sum + ptx::ex2(sink_log2 - subtracted));
  return {factor, subtracted + __log2f(sum), maximum, empty};
}

}  // namespace strata::cuda::sparse_decode
