// Whether packed memory can be what its LinearWeight says. An implementation whose own layout it is asks in `supports`: it alone knows the
// bytes.
#pragma once

#include "core/check.h"
#include "strata/op.h"
#include "strata/ops/linear.h"

namespace strata::ops {

// `bytes`: what the layout takes for the weight's sizes.
inline Support packed_support(const LinearWeight& w, size_t bytes) {
  if (w.packed.bytes() == bytes) return Support::yes();
  return Support::no(
      fmt::format("a packed weight of {} groups of {} x {} has {} bytes, this one {}", w.groups, w.n, w.k, bytes, w.packed.bytes()));
}

}  // namespace strata::ops
