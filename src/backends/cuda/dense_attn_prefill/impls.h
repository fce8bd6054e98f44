// The implementations of dense_attn_prefill on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/dense_attention.h"

namespace strata::cuda {

Implementation<DenseAttnPrefillParams> dense_attn_prefill_sm90();     // "cuda/sm90"
Implementation<DenseAttnPrefillParams> dense_attn_prefill_smxx();     // "cuda/smxx"
Implementation<DenseAttnPrefillParams> dense_attn_prefill_generic();  // "cuda/generic"

}  // namespace strata::cuda
