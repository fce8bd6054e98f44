// Ops without a CUDA implementation yet: a line here goes when its implementation lands.
#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<IndexerLogitsParams>> indexer_logits() { return {}; }
std::vector<Implementation<TopkSelectParams>> topk_select() { return {}; }
std::vector<Implementation<IndexerTopkParams>> indexer_topk() { return {}; }

}  // namespace strata::cuda
