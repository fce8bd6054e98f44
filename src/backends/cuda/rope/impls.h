// The implementations of the rotary ops on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/rope.h"

namespace strata::cuda {

// "cuda/smxx".
Implementation<InverseRopeParams> inverse_rope_smxx();
Implementation<InverseRopeQuantParams> inverse_rope_quant_smxx();

}  // namespace strata::cuda
