// The implementations of the indexer's ops on CUDA.
#pragma once

#include "backends/cuda/indexer/sm90/indexer.h"
#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/indexer.h"
#include "strata/ops/mla.h"

namespace strata::cuda {

// "cuda/sm90_decode", "cuda/sm90_held" and so on.
Implementation<IndexerLogitsParams> indexer_logits_sm90(sm90::LogitsKernel kernel);
Implementation<TopkSelectParams> topk_select_sm90(sm90::SelectKernel kernel);
// Selects both the kernels that suit the call and the notes. "cuda/sm90_candidates", "cuda/sm90_maxima": the logits kernel writes these
// notes for the selection. "cuda/sm90": the logits alone.
Implementation<IndexerTopkParams> indexer_topk_sm90(Notes kind);
// "cuda/smxx".
Implementation<IndexerKeyInsertParams> indexer_key_insert_smxx();
Implementation<IndexerQueryParams> indexer_query_smxx();
Implementation<IndexerLogitsParams> indexer_logits_smxx();
Implementation<TopkSelectParams> topk_select_smxx();
Implementation<IndexerTopkParams> indexer_topk_smxx();

}  // namespace strata::cuda
