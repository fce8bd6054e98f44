// Launches of the Hopper prefill kernel; each is instantiated in a file of its own.
#pragma once

#include "backends/cuda/sm90/sparse_prefill/config.h"
#include "strata/op.h"

namespace strata::cuda::sparse_prefill {

template <int kDim, bool kTogether>
void launch_prefill(const WholeArgs& args, int blocks, const ExecutionContext& context);

template <int kDim>
void launch_parts(const PartArgs& args, int blocks, const ExecutionContext& context);

extern template void launch_prefill<512, false>(const WholeArgs&, int, const ExecutionContext&);
extern template void launch_prefill<512, true>(const WholeArgs&, int, const ExecutionContext&);
extern template void launch_prefill<576, false>(const WholeArgs&, int, const ExecutionContext&);

extern template void launch_parts<512>(const PartArgs&, int, const ExecutionContext&);
extern template void launch_parts<576>(const PartArgs&, int, const ExecutionContext&);

}  // namespace strata::cuda::sparse_prefill
