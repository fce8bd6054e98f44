// The implementations of merge_attn_states on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/sparse_attention.h"

namespace strata::cuda {

// "cuda/smxx".
Implementation<MergeAttnStatesParams> merge_attn_states_smxx();

}  // namespace strata::cuda
