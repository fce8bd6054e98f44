// The prologue of compress_norm_rope_store as a separate op.
#pragma once

#include "strata/op.h"
#include "strata/ops/compressor.h"

namespace strata::ops {

// The call of save_partial_states that is the prologue of `p`.
inline SavePartialStatesParams saves_of(const CompressNormRopeStoreParams& p) {
  return {.kv_score = p.save_prologue->kv_score,
          .ape = p.save_prologue->ape,
          .positions = p.positions,
          .state_slots = p.state_slots,
          .state = p.state};
}

// `compression`, completed by the prologue where its kernels do not fuse it.
Implementation<CompressNormRopeStoreParams> with_compress_fusions(Implementation<CompressNormRopeStoreParams> compression);

}  // namespace strata::ops
