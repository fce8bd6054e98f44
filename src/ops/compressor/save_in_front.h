// The step's saves for implementations of compress_norm_rope_store that do not make them by themselves (docs/decisions/0005).
#pragma once

#include <vector>

#include "strata/op.h"
#include "strata/ops/compressor.h"

namespace strata::ops {

inline SavePartialStatesParams saves_of(const CompressNormRopeStoreParams& p) {
  return {.kv_score = p.kv_score, .ape = p.ape, .positions = p.positions, .state_slots = p.state_slots, .state = p.state};
}

// Each of `compressions` with the first of `saves`, of the same backend, in front of it where a call has kv_score. As they are where that
// is not built.
std::vector<Implementation<CompressNormRopeStoreParams>> save_in_front(
    std::vector<Implementation<CompressNormRopeStoreParams>> compressions,
    const std::vector<Implementation<SavePartialStatesParams>>& saves);

}  // namespace strata::ops
