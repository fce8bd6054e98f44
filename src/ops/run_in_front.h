// An op that begins with what another op would do, for implementations that do not do that by themselves (docs/decisions/0005).
#pragma once

#include <vector>

#include "strata/op.h"

namespace strata::ops {

// Each of `last` with in_front(first, params, context) in front of it, `first` being the first of `firsts`, of the same backend; none of
// them where that is not built.
template <class Params, class FirstParams, class InFront>
std::vector<Implementation<Params>> run_in_front(std::vector<Implementation<Params>> last,
                                                 const std::vector<Implementation<FirstParams>>& firsts, InFront in_front) {
  if (firsts.empty()) return last;
  for (Implementation<Params>& implementation : last) {
    implementation.run = [run = implementation.run, first = firsts.front(), in_front](const Params& p, const ExecutionContext& context) {
      in_front(first, p, context);
      run(p, context);
    };
  }
  return last;
}

}  // namespace strata::ops
