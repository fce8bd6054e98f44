// The lists of the indexer's ops, fastest first.
#include "backends/cuda/indexer/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<IndexerKeyInsertParams>> indexer_key_insert() { return {indexer_key_insert_smxx()}; }
std::vector<Implementation<IndexerQueryParams>> indexer_query() { return {indexer_query_smxx()}; }
std::vector<Implementation<IndexerLogitsParams>> indexer_logits() { return {indexer_logits_sm90(), indexer_logits_smxx()}; }
std::vector<Implementation<TopkSelectParams>> topk_select() { return {topk_select_sm90(), topk_select_smxx()}; }
std::vector<Implementation<IndexerTopkParams>> indexer_topk() { return {indexer_topk_sm90(), indexer_topk_smxx()}; }

}  // namespace strata::cuda
