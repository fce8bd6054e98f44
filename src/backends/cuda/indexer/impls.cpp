// The lists of the indexer's ops, fastest first.
#include "backends/cuda/indexer/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<IndexerKeyInsertParams>> indexer_key_insert() { return {indexer_key_insert_smxx()}; }
std::vector<Implementation<IndexerQueryParams>> indexer_query() { return {indexer_query_smxx()}; }
std::vector<Implementation<IndexerLogitsParams>> indexer_logits() {
  using sm90::LogitsKernel;
  return {indexer_logits_sm90(LogitsKernel::one_token), indexer_logits_sm90(LogitsKernel::decode),
          indexer_logits_sm90(LogitsKernel::prefill), indexer_logits_smxx()};
}
std::vector<Implementation<TopkSelectParams>> topk_select() {
  using sm90::SelectKernel;
  return {topk_select_sm90(SelectKernel::few_rows), topk_select_sm90(SelectKernel::by_length), topk_select_sm90(SelectKernel::held),
          topk_select_sm90(SelectKernel::passes), topk_select_smxx()};
}
std::vector<Implementation<IndexerTopkParams>> indexer_topk() {
  return {indexer_topk_sm90(Notes::candidates), indexer_topk_sm90(Notes::maxima), indexer_topk_sm90(Notes::none), indexer_topk_smxx()};
}

}  // namespace strata::cuda
