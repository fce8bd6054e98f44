// The calls of separate ops that are equivalent to prologues and epilogues (docs/decisions/0005), for kernels that fuse them and for those
// that do not.
#pragma once

#include "strata/ops/compressor.h"
#include "strata/ops/indexer.h"
#include "strata/ops/kv_insert.h"
#include "strata/ops/norm.h"

namespace strata {
class Arena;
}

namespace strata::ops {

// The call of save_partial_states that is the prologue of `p`.
inline SavePartialStatesParams saves_of(const CompressNormRopeStoreParams& p) {
  return {.kv_score = p.save_prologue->kv_score,
          .ape = p.save_prologue->ape,
          .positions = p.positions,
          .state_slots = p.state_slots,
          .state = p.state};
}

// The call of qnorm_rope_kv_insert, without query heads, that is equivalent to the epilogue of `p`, with its key normalised to `kv`.
QNormRopeKvInsertParams insertion(const RmsNormPairParams& p, const TensorView& kv);

// Whether every candidate is selected, so that nothing is scored.
inline bool selects_all(const IndexerTopkParams& p) { return p.max_length <= p.topk_indices.shape[1]; }

// `p` without its prologue: its query is in memory of the arena.
IndexerTopkParams without_query_prologue(const IndexerTopkParams& p, Arena& arena);
// The call of indexer_query that makes the query of `scored`.
IndexerQueryParams query_call(const IndexerQueryPrologue& query, const IndexerTopkParams& scored);

}  // namespace strata::ops
