// Shared by the launchers of rope.clcpp.
#pragma once

#include "backends/opencl/rope/call.h"
#include "backends/opencl/runtime/alignment.h"
#include "backends/opencl/runtime/implementation.h"
#include "core/ceil_div.h"

namespace strata::opencl {

// of_vector: runs per vector. The first plain_runs of them come before the rotary runs.
inline RopeRuns rope_runs(const TensorView& o, const TensorView& cos_sin, int64_t plain_runs, int64_t of_vector) {
  const int64_t of_token = o.shape[1] * of_vector;
  return {.total = o.shape[0] * of_token,
          .nope = static_cast<int32_t>(o.shape[2] - cos_sin.shape[1]),
          .rotary = static_cast<int32_t>(cos_sin.shape[1]),
          .plain_runs = static_cast<int32_t>(plain_runs),
          .of_vector = divisor_of(of_vector),
          .of_token = divisor_of(of_token == 0 ? 1 : of_token)};
}

inline Support supports_token(const TensorView& o) {
  return o.shape[1] * o.shape[2] < (int64_t{1} << 30) ? Support::yes() : Support::no("needs fewer than 2^30 values a token");
}

inline Range range_of(const RopeRuns& runs, int items) {
  return {.groups = {static_cast<size_t>(ceil_div(runs.total, int64_t{items} * kRopeRuns)), 1, 1},
          .items = {static_cast<size_t>(items), 1, 1}};
}

}  // namespace strata::opencl
