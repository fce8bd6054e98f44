// Tokens as batch entries of one query each, for attention ops with several queries per entry.
#pragma once

#include "strata/tensor.h"

namespace strata {

// A view [T, ...] as [T, 1, ...], for any row stride: index rows have the step's width, which may be less than their stride.
inline TensorView one_query_each(const TensorView& v) {
  TensorView view = v;
  view.rank = v.rank + 1;
  view.shape[1] = 1, view.stride[1] = v.stride[0];
  for (auto i = size_t{1}; i < static_cast<size_t>(v.rank); ++i) view.shape[i + 1] = v.shape[i], view.stride[i + 1] = v.stride[i];
  return view;
}

}  // namespace strata
