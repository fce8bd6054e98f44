// A thread's share of a bf16 vector, for ops that move vectors and rotate their rotary dimensions: 8 values in one 16-byte access (kWide:
// rows are aligned, and the rotary dimensions begin with a run), or a pair at any alignment.
#pragma once

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/values.cuh"
#include "core/ceil_div.h"

namespace strata::cuda {

template <bool kWide>
struct Run {
  static constexpr int kDims = kWide ? 8 : 2;
  uint32_t words[kDims / 2];

  // count: kDims, or 1 at the end of an odd number of values.
  __device__ __forceinline__ void load(const Bf16* p, int count) {
    if constexpr (kWide) {
      const uint4 v = *reinterpret_cast<const uint4*>(p);
      words[0] = v.x;
      words[1] = v.y;
      words[2] = v.z;
      words[3] = v.w;
    } else {
      words[0] = p[0].bits;
      if (count == kDims) words[0] |= uint32_t{p[1].bits} << 16;
    }
  }
  __device__ __forceinline__ void store(Bf16* p, int count) const {
    if constexpr (kWide) {
      *reinterpret_cast<uint4*>(p) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      p[0].bits = static_cast<uint16_t>(words[0]);
      if (count == kDims) p[1].bits = static_cast<uint16_t>(words[0] >> 16);
    }
  }
  // Stores f(values), rounded once.
  template <class F>
  __device__ __forceinline__ void transform(F f) {
    float values[kDims];
#pragma unroll
    for (int i = 0; i < kDims / 2; ++i) {
      values[2 * i] = bf16_low(words[i]);
      values[2 * i + 1] = bf16_high(words[i]);
    }
    f(values);
#pragma unroll
    for (int i = 0; i < kDims / 2; ++i) words[i] = ptx::cvt_bf16x2(values[2 * i], values[2 * i + 1]);
  }
};

// How [T, H] vectors of `nope` plain and then `rotary` rotated dimensions are divided into runs. If a call leaves the plain dimensions
// unchanged, they have no runs.
struct RunPlan {
  int32_t nope = 0, rotary = 0;
  int32_t plain_runs = 0;  // of a vector, before the rotary ones
  Divisor of_vector{1};    // runs of one vector
  Divisor of_token{1};     // of all heads
  int64_t total = 0;

  RunPlan() = default;
  RunPlan(int64_t tokens, int64_t heads, int64_t nope, int64_t rotary, int run_dims, bool with_plain, bool with_rotary = true)
      : nope(static_cast<int32_t>(nope)),
        rotary(static_cast<int32_t>(rotary)),
        plain_runs(with_plain ? static_cast<int32_t>(ceil_div(nope, run_dims)) : 0) {
    const int64_t runs = plain_runs + (with_rotary ? rotary / run_dims : 0);
    total = tokens * heads * runs;
    if (total == 0) return;
    of_vector = Divisor(static_cast<int32_t>(runs));
    of_token = Divisor(static_cast<int32_t>(heads * runs));
  }
};

// The position of run i < total; total is below 2^31, which blocks_for guarantees.
struct RunPosition {
  int32_t token, head;
  int32_t dim;    // the first
  int32_t count;  // dimensions
};

template <bool kWide>
__device__ __forceinline__ RunPosition run_position(const RunPlan& plan, int32_t i) {
  constexpr int kDims = Run<kWide>::kDims;
  const int32_t token = plan.of_token.divide(i), in_token = i - token * plan.of_token.value();
  const int32_t head = plan.of_vector.divide(in_token), run = in_token - head * plan.of_vector.value();
  const int32_t dim = run < plan.plain_runs ? run * kDims : plan.nope + (run - plan.plain_runs) * kDims;
  return {token, head, dim, !kWide && dim + 1 == plan.nope ? 1 : kDims};
}

}  // namespace strata::cuda
