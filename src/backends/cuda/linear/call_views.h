// A call of either linear op as a call of the other, and calls of a slice of the tokens.
#pragma once

#include "strata/ops/linear.h"

namespace strata::cuda {

// [T, K] as [T, 1, K], the shape of the grouped op.
TensorView as_grouped(const TensorView& view);
// A grouped call of one group as a call of linear.
LinearParams as_linear(const GroupedLinearParams& p);

// Tokens [first, first + count) of a call of either op without quantised output.
template <class Params>
Params tokens_of(const Params& p, int64_t first, int64_t count) {
  Params sliced = p;
  sliced.x = p.x.slice(first, count);
  if (p.x_scale.present()) sliced.x_scale = p.x_scale.slice(first, count);
  sliced.y = p.y.slice(first, count);
  return sliced;
}
// The shapes of a call with `count` of its tokens.
LinearParams shapes_of(const LinearParams& p, int64_t count);

}  // namespace strata::cuda
