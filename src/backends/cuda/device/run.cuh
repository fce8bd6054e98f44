// A thread's share of a bf16 vector, for ops that move vectors and turn their rotary lanes: 8 lanes in one 16-byte access (kWide: rows
// are aligned, and the rotary lanes begin with a run), or a pair at any alignment.
#pragma once

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/values.cuh"
#include "core/ceil_div.h"

namespace strata::cuda {

template <bool kWide>
struct Run {
  static constexpr int kLanes = kWide ? 8 : 2;
  uint32_t words[kLanes / 2];

  // count: kLanes, or 1 at the end of an odd number of lanes.
  __device__ __forceinline__ void load(const Bf16* p, int count) {
    if constexpr (kWide) {
      const uint4 v = *reinterpret_cast<const uint4*>(p);
      words[0] = v.x;
      words[1] = v.y;
      words[2] = v.z;
      words[3] = v.w;
    } else {
      words[0] = p[0].bits;
      if (count == kLanes) words[0] |= uint32_t{p[1].bits} << 16;
    }
  }
  __device__ __forceinline__ void store(Bf16* p, int count) const {
    if constexpr (kWide) {
      *reinterpret_cast<uint4*>(p) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      p[0].bits = static_cast<uint16_t>(words[0]);
      if (count == kLanes) p[1].bits = static_cast<uint16_t>(words[0] >> 16);
    }
  }
  // f(values) changes them; rounded once.
  template <class F>
  __device__ __forceinline__ void transform(F f) {
    float values[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes / 2; ++i) {
      values[2 * i] = bf16_low(words[i]);
      values[2 * i + 1] = bf16_high(words[i]);
    }
    f(values);
#pragma unroll
    for (int i = 0; i < kLanes / 2; ++i) words[i] = ptx::cvt_bf16x2(values[2 * i], values[2 * i + 1]);
  }
};

// How [T, H] vectors of `nope` plain and then `rotary` turned lanes are cut into runs. A call that leaves the plain lanes as they are has
// no runs for them.
struct RunPlan {
  int32_t nope = 0, rotary = 0;
  int32_t plain_runs = 0;  // of a vector, before the rotary ones
  Divisor of_vector{1};    // runs of one vector
  Divisor of_token{1};     // of all heads
  int64_t total = 0;

  RunPlan() = default;
  RunPlan(int64_t tokens, int64_t heads, int64_t nope, int64_t rotary, int run_lanes, bool with_plain, bool with_rotary = true)
      : nope(static_cast<int32_t>(nope)),
        rotary(static_cast<int32_t>(rotary)),
        plain_runs(with_plain ? static_cast<int32_t>(ceil_div(nope, run_lanes)) : 0) {
    const int64_t runs = plain_runs + (with_rotary ? rotary / run_lanes : 0);
    total = tokens * heads * runs;
    if (total == 0) return;
    of_vector = Divisor(static_cast<int32_t>(runs));
    of_token = Divisor(static_cast<int32_t>(heads * runs));
  }
};

// Where run i < total is, total being below 2^31 (blocks_for sees to it).
struct RunPlace {
  int32_t token, head;
  int32_t lane;   // the first
  int32_t count;  // lanes
};

template <bool kWide>
__device__ __forceinline__ RunPlace place_run(const RunPlan& plan, int32_t i) {
  constexpr int kLanes = Run<kWide>::kLanes;
  const int32_t token = plan.of_token.divide(i), in_token = i - token * plan.of_token.value();
  const int32_t head = plan.of_vector.divide(in_token), run = in_token - head * plan.of_vector.value();
  const int32_t lane = run < plan.plain_runs ? run * kLanes : plan.nope + (run - plan.plain_runs) * kLanes;
  return {token, head, lane, !kWide && lane + 1 == plan.nope ? 1 : kLanes};
}

}  // namespace strata::cuda
