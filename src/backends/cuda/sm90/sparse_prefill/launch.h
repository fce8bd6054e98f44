// Launches of the Hopper prefill kernel; each is instantiated in a file of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/sparse_prefill/config.h"

namespace strata::cuda::sparse_prefill {

template <int kDim, bool kTogether>
void launch_prefill(const WholeArgs& args, int blocks, cudaStream_t stream);

template <int kDim>
void launch_parts(const PartArgs& args, int blocks, cudaStream_t stream);

extern template void launch_prefill<512, false>(const WholeArgs&, int, cudaStream_t);
extern template void launch_prefill<512, true>(const WholeArgs&, int, cudaStream_t);
extern template void launch_prefill<576, false>(const WholeArgs&, int, cudaStream_t);

extern template void launch_parts<512>(const PartArgs&, int, cudaStream_t);
extern template void launch_parts<576>(const PartArgs&, int, cudaStream_t);

}  // namespace strata::cuda::sparse_prefill
