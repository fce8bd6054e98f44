// Query tokens of sparse_attn_decode, [B, S, H, D], as ops of tokens take them: [B*S, H, D]. Views may be of a call that was not checked.
#pragma once

#include <vector>

#include "strata/tensor.h"

namespace strata::ops {

// `count` rows from the first on.
inline TensorView entries_of(const TensorView& v, int64_t first, int64_t count) {
  return first == 0 && count == v.shape[0] ? v : v.slice(first, count);
}

// Of one entry, or of entries whose tokens are evenly spaced.
inline TensorView as_tokens(const TensorView& v) {
  TensorView tokens = v;
  tokens.rank = 3;
  tokens.shape = {v.shape[0] * v.shape[1], v.shape[2], v.shape[3], 0};
  tokens.stride = {v.shape[1] == 1 ? v.stride[0] : v.stride[1], v.stride[2], v.stride[3], 0};
  return tokens;
}

// The positions, one per token, of entries of `v`.
inline TensorView positions_of(const TensorView& positions, const TensorView& v, int64_t first, int64_t count) {
  return count == v.shape[0] ? positions : positions.slice(first * v.shape[1], count * v.shape[1]);
}

// call(first entry, entries): one of all entries where the tokens of `v` are evenly spaced, else one for each.
template <class Call>
auto even_parts(const TensorView& v, const Call& call) {
  std::vector<decltype(call(int64_t{0}, int64_t{0}))> calls;
  const bool even = v.shape[1] == 1 || v.stride[0] == v.shape[1] * v.stride[1];
  const int64_t entries = even ? v.shape[0] : 1;
  for (int64_t first = 0; first < v.shape[0]; first += entries) calls.push_back(call(first, entries));
  return calls;
}

}  // namespace strata::ops
