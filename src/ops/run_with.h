// An op that does what another op would do too, in front of itself or behind, for implementations that do not do that by themselves
// (docs/decisions/0005).
#pragma once

#include <vector>

#include "strata/op.h"

namespace strata::ops {

// Each of `list` as both(run, other, params, context), `run` being its own and `other` the first of `others`, of the same backend; as it is
// where that is not built.
template <class Params, class OtherParams, class Both>
std::vector<Implementation<Params>> run_with(std::vector<Implementation<Params>> list,
                                             const std::vector<Implementation<OtherParams>>& others, Both both) {
  if (others.empty()) return list;
  for (Implementation<Params>& implementation : list) {
    implementation.run = [run = implementation.run, other = others.front(), both](const Params& p, const ExecutionContext& context) {
      both(run, other, p, context);
    };
  }
  return list;
}

}  // namespace strata::ops
