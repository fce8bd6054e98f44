// Shared checks of the dense attention ops.
#pragma once

#include "ops/sparse_attention/attention_checks.h"

namespace strata::ops {

inline constexpr int64_t kMaxDenseHeadDim = 576;

// Bounds of a request's lengths: kernels count queries and rows in 32 bits.
inline void check_longest(ParamCheck& c, std::string_view name, int64_t longest) {
  c.require(longest >= 0 && longest < kMaxIndices, "{} must be in [0, {}), is {}", name, kMaxIndices, longest);
}

// `requests` requests of up to `longest` queries have room for `queries`. A kernel processes no more, so later rows would stay unwritten.
inline void check_room(ParamCheck& c, int64_t queries, int64_t requests, int64_t longest) {
  int64_t room = 0;
  if (__builtin_mul_overflow(requests, longest, &room)) return;  // more than there can be
  c.require(queries <= room, "q must have at most {} rows, max_query_len = {} for each of {} requests, has {}", room, longest, requests,
            queries);
}

// start[0] <= start[1] <= ... with `rows` rows in all and at most `longest` in one request. Values are checked on host-visible memory only.
inline void check_start_loc(ParamCheck& c, std::string_view name, const TensorView& start, int64_t rows, std::string_view bound,
                            int64_t longest) {
  if (!host_visible(start)) return;
  const int32_t* values = start.ptr<int32_t>();
  const int64_t last = start.shape[0] - 1;
  for (int64_t b = 0; b < last; ++b) {
    const int64_t count = int64_t{values[b + 1]} - values[b];
    c.require(count >= 0, "{}[{}] must be at least the entry before it, {}, is {}", name, b + 1, values[b], values[b + 1]);
    c.require(count <= longest, "{}[{}] - {}[{}] must be at most {} = {}, is {}", name, b + 1, name, b, bound, longest, count);
  }
  const int64_t all = int64_t{values[last]} - values[0];
  c.require(all == rows, "{} must cover {} rows, covers {}", name, rows, all);
}

}  // namespace strata::ops
