// The implementations of the indexer's ops on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/indexer.h"
#include "strata/ops/mla.h"

namespace strata::cuda {

// "cuda/sm90".
Implementation<IndexerLogitsParams> indexer_logits_sm90();
Implementation<TopkSelectParams> topk_select_sm90();
Implementation<IndexerTopkParams> indexer_topk_sm90();
// "cuda/smxx".
Implementation<IndexerKeyInsertParams> indexer_key_insert_smxx();
Implementation<IndexerQueryParams> indexer_query_smxx();
Implementation<IndexerLogitsParams> indexer_logits_smxx();
Implementation<TopkSelectParams> topk_select_smxx();
Implementation<IndexerTopkParams> indexer_topk_smxx();

}  // namespace strata::cuda
