// Query tokens of sparse_attn_decode, [B, S, H, D], as ops of tokens take them: [B*S, H, D].
#pragma once

#include "strata/tensor.h"

namespace strata::ops {

// Of one entry, or of entries whose tokens are evenly spaced.
inline TensorView as_tokens(const TensorView& v) {
  TensorView tokens = v;
  tokens.rank = 3;
  tokens.shape = {v.shape[0] * v.shape[1], v.shape[2], v.shape[3], 0};
  tokens.stride = {v.shape[1] == 1 ? v.stride[0] : v.stride[1], v.stride[2], v.stride[3], 0};
  return tokens;
}

// f(first entry, entries) for all at once where the tokens of `v` are evenly spaced, else for one after the other.
template <class F>
void for_even_entries(const TensorView& v, const F& f) {
  if (v.shape[1] == 1 || v.stride[0] == v.shape[1] * v.stride[1]) return f(0, v.shape[0]);
  for (int64_t entry = 0; entry < v.shape[0]; ++entry) f(entry, 1);
}

}  // namespace strata::ops
