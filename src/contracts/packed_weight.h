// Weights in the private layout of one implementation.
#pragma once

#include <string>

#include "core/check.h"
#include "strata/op.h"
#include "strata/ops/linear.h"

namespace strata::ops {

// The row-major weight, packed by `packing`.
inline LinearWeight as_packed(const LinearWeight& w, const std::string& packing, const TensorView& packed) {
  LinearWeight result = w;
  result.weight = {};
  result.scale = {};
  result.packed = packed;
  result.packing = packing;
  return result;
}

// Whether packed memory can be what its LinearWeight says. The implementation that owns the layout checks this in `supports`: only it knows
// the bytes that the layout takes for the weight's sizes.
inline Support packed_support(const LinearWeight& w, int64_t bytes) {
  if (w.packed.bytes() == bytes) return Support::yes();
  return Support::no(
      fmt::format("a packed weight of {} groups of {} x {} has {} bytes, this one {}", w.groups, w.n, w.k, bytes, w.packed.bytes()));
}

}  // namespace strata::ops
