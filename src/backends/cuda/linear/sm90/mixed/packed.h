// Weights in the layout that linear_mixed reads; packed when a model is loaded.
#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/linear/sm90/mixed/config.h"
#include "strata/ops/linear.h"

namespace strata::cuda::sm90 {

// Packs a row-major e4m3 weight with powers of two as scales, n and k multiples of 128, scale blocks multiples of 64 x 128. A NaN value
// makes its block NaN, because this layout has no single NaN.
void pack_mixed(const LinearWeight& weight, void* packed, cudaStream_t stream);

}  // namespace strata::cuda::sm90
