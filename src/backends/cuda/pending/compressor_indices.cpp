// Ops without a CUDA implementation yet: a line here goes when its implementation lands.
#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<SavePartialStatesParams>> save_partial_states() { return {}; }
std::vector<Implementation<CompressNormRopeStoreParams>> compress_norm_rope_store() { return {}; }
std::vector<Implementation<IndexerQueryParams>> indexer_query() { return {}; }
std::vector<Implementation<IndexerKeyInsertParams>> indexer_key_insert() { return {}; }

}  // namespace strata::cuda
