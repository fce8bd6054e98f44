// Launches of the Hopper prefill kernel; each is instantiated in a file of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/sparse_prefill/config.h"

namespace strata::cuda::sparse_prefill {

template <int kDim, bool kTogether>
void launch_prefill(const PrefillArgs& args, int blocks, cudaStream_t stream);

// Behind a launch that is `followed`, whose blocks' places these take as they end; else behind all that is in front.
template <int kDim>
void launch_parts(const PartArgs& args, int blocks, bool beside, cudaStream_t stream);

extern template void launch_prefill<512, false>(const PrefillArgs&, int, cudaStream_t);
extern template void launch_prefill<512, true>(const PrefillArgs&, int, cudaStream_t);
extern template void launch_prefill<576, false>(const PrefillArgs&, int, cudaStream_t);

extern template void launch_parts<512>(const PartArgs&, int, bool, cudaStream_t);
extern template void launch_parts<576>(const PartArgs&, int, bool, cudaStream_t);

}  // namespace strata::cuda::sparse_prefill
