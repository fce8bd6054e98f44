// Query tokens of sparse_attn_decode, [B, S, H, D], as ops over tokens take them: [B*S, H, D]. Views may belong to a call that was not
// checked.
#pragma once

#include <vector>

#include "strata/tensor.h"

namespace strata::ops {

// `count` rows from the first on.
inline TensorView entries_of(const TensorView& v, int64_t first, int64_t count) {
  return first == 0 && count == v.shape[0] ? v : v.slice(first, count);
}

// For one entry, or for entries whose tokens are evenly spaced.
inline TensorView as_tokens(const TensorView& v) {
  TensorView tokens = v;
  tokens.rank = 3;
  tokens.shape = {v.shape[0] * v.shape[1], v.shape[2], v.shape[3], 0};
  tokens.stride = {v.shape[1] == 1 ? v.stride[0] : v.stride[1], v.stride[2], v.stride[3], 0};
  return tokens;
}

// The positions, one per token, of the entries of `v`.
inline TensorView positions_of(const TensorView& positions, const TensorView& v, int64_t first, int64_t count) {
  return count == v.shape[0] ? positions : positions.slice(first * v.shape[1], count * v.shape[1]);
}

// Calls call(first entry, entries) for each entry; not at all where the tokens of `v` are evenly spaced, so that one call has them all.
template <class Call>
auto even_parts(const TensorView& v, const Call& call) {
  std::vector<decltype(call(int64_t{0}, int64_t{0}))> calls;
  if (v.shape[1] == 1 || v.stride[0] == v.shape[1] * v.stride[1]) return calls;
  for (int64_t entry = 0; entry < v.shape[0]; ++entry) calls.push_back(call(entry, 1));
  return calls;
}

}  // namespace strata::ops
