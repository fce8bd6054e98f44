// A call of either linear op seen as one of the other, and parts of its tokens.
#pragma once

#include "strata/ops/linear.h"

namespace strata::cuda {

// [T, K] as [T, 1, K], with a shape as the grouped op has it.
TensorView as_grouped(const TensorView& view);
// A call of one group as linear has it.
LinearParams as_linear(const GroupedLinearParams& p);

// Tokens [first, first + count) of a call of either op that leaves values.
template <class Params>
Params tokens_of(const Params& p, int64_t first, int64_t count) {
  Params part = p;
  part.x = p.x.slice(first, count);
  if (p.x_scale.present()) part.x_scale = p.x_scale.slice(first, count);
  part.y = p.y.slice(first, count);
  return part;
}
// The shapes of a call for `count` of its tokens.
LinearParams shapes_of(const LinearParams& p, int64_t count);

}  // namespace strata::cuda
