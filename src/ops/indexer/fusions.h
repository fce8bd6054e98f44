// The prologue and the epilogue of indexer_topk as separate ops.
#pragma once

#include "core/arena.h"
#include "strata/op.h"
#include "strata/ops/indexer.h"

namespace strata::ops {

// Nothing is scored: every candidate is selected.
inline bool selects_all(const IndexerTopkParams& p) { return p.max_length <= p.topk_indices.shape[1]; }

// `p` without its prologue: its query has memory of the arena.
IndexerTopkParams without_query_prologue(const IndexerTopkParams& p, Arena& arena);
// The call of indexer_query that makes the query of `rest`, which is `p` without its prologue.
IndexerQueryParams query_call(const IndexerTopkParams& p, const IndexerTopkParams& rest);

// `selection`, completed by what its kernels do not fuse.
Implementation<IndexerTopkParams> with_topk_fusions(Implementation<IndexerTopkParams> selection);

}  // namespace strata::ops
