// Launches of the Hopper kernel for sparse attention to rows that are multiplied as bf16; each is instantiated in a file of its own.
#pragma once

#include "backends/cuda/mqa_engine/config.h"
#include "strata/op.h"

namespace strata::cuda::sparse_prefill {

template <class Source, int kDim, bool kTogether>
void launch_tokens(const WholeArgs<Source>& args, int blocks, const ExecutionContext& context);

template <class Source, int kDim>
void launch_parts(const PartArgs<Source>& args, int blocks, const ExecutionContext& context);

}  // namespace strata::cuda::sparse_prefill
