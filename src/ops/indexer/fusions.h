// The prologue and the epilogue of indexer_topk as separate ops.
#pragma once

#include "contracts/fused_calls.h"
#include "strata/op.h"
#include "strata/ops/indexer.h"

namespace strata::ops {

// `selection`, completed by what its kernels do not fuse.
Implementation<IndexerTopkParams> with_topk_fusions(Implementation<IndexerTopkParams> selection);

}  // namespace strata::ops
