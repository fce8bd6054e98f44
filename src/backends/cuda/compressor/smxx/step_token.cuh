// What a CTA determines about its token and about earlier tokens of the step, for the kernel that makes both a step's saves and its entries
// of ratio 4.
#pragma once

#include "backends/cuda/compressor/entry.cuh"

namespace strata::cuda {

// Of ratio 4, whose windows overlap.
inline constexpr int kRatio4 = 4, kWindowRows4 = 2 * kRatio4;

// How many positions before the token the lane's row is: lane i has row i of the window, and so have lanes i + 8, ....
__device__ __forceinline__ int rows_back() { return kWindowRows4 - 1 - static_cast<int>(threadIdx.x % kWindowRows4); }

struct StepToken {
  int64_t position = 0, state_slot = -1, out_slot = -1;
  int32_t request = -1;
  unsigned from_step = 0;  // bit i: this step saves row i of the window

  // By whole warps: every lane reads the token whose row it handles.
  template <class Read>
  static __device__ __forceinline__ StepToken look_up(const CompressArgs& a, int64_t token, const Read& read) {
    const int back = rows_back();
    const int64_t there = max(token - back, int64_t{0});
    const int64_t position = read(a.positions + there), slot = read(a.state_slots + there), out_slot = read(a.out_slots + token);
    const int32_t request = read(a.token_to_req + there);
    constexpr int kOwn = kWindowRows4 - 1;
    StepToken t{.position = __shfl_sync(kAllLanes, position, kOwn),
                .state_slot = __shfl_sync(kAllLanes, slot, kOwn),
                .out_slot = out_slot,
                .request = __shfl_sync(kAllLanes, request, kOwn)};
    const bool saved = (token >= back) & (slot >= 0) & (request == t.request) & (position == t.position - back);
    t.from_step = __ballot_sync(kAllLanes, saved) & ((1u << kWindowRows4) - 1);
    return t;
  }

  __device__ __forceinline__ bool completes() const {
    return (state_slot >= 0) & (out_slot >= 0) & completes_entry(position, kRatio4) & (request >= 0);
  }
  __device__ __forceinline__ Boundary boundary() const { return {position, request, out_slot}; }
};

}  // namespace strata::cuda
