// Launches of the Hopper attention kernel over rows that are multiplied as bf16. Each is instantiated in its own file.
#pragma once

#include "backends/cuda/mqa_engine/config.h"
#include "strata/op.h"

namespace strata::cuda::sparse_prefill {

template <class Source, int kDim, bool kTwoHeadTiles>
void launch_tokens(const WholeArgs<Source>& args, int blocks, const ExecutionContext& context);

template <class Source, int kDim>
void launch_splits(const SplitArgs<Source>& args, int blocks, const ExecutionContext& context);

}  // namespace strata::cuda::sparse_prefill
