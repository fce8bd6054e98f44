// Hopper's kernels of the indexer. Launchers as indexer/indexer.h has them.
#pragma once

#include "backends/cuda/indexer/indexer.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda::sm90 {

// Of IndexerLogits and IndexerTopk alike. Pointers that turn out not to be aligned at run time are left to the portable kernel.
Support supports_scoring(const TensorView& q, const PagedCache& cache, const Capabilities& c);
bool launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints, const ExecutionContext& context);
void launch_topk_select(const TopkSelectParams& p, const SelectHints& hints, const ExecutionContext& context);

}  // namespace strata::cuda::sm90
