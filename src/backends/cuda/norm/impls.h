// The implementations of the norms on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/norm.h"

namespace strata::cuda {

// "cuda/smxx".
Implementation<RmsNormPairParams> rms_norm_pair_smxx();

}  // namespace strata::cuda
