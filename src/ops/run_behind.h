// An op that ends with what another op would do, for implementations that do not do that by themselves (docs/decisions/0005).
#pragma once

#include <vector>

#include "strata/op.h"

namespace strata::ops {

// Each of `first` with behind(next, params, context) behind it, `next` being the first of `nexts`, of the same backend; none of them where
// that is not built.
template <class Params, class NextParams, class Behind>
std::vector<Implementation<Params>> run_behind(std::vector<Implementation<Params>> first,
                                               const std::vector<Implementation<NextParams>>& nexts, Behind behind) {
  if (nexts.empty()) return first;
  for (Implementation<Params>& implementation : first) {
    implementation.run = [run = implementation.run, next = nexts.front(), behind](const Params& p, const ExecutionContext& context) {
      run(p, context);
      behind(next, p, context);
    };
  }
  return first;
}

}  // namespace strata::ops
