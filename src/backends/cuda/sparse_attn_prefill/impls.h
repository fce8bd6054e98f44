// The implementations of sparse_attn_prefill on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/sparse_attention.h"

namespace strata::cuda {

Implementation<SparseAttnPrefillParams> sparse_attn_prefill_sm90();     // "cuda/sm90"
Implementation<SparseAttnPrefillParams> sparse_attn_prefill_smxx();     // "cuda/smxx"
Implementation<SparseAttnPrefillParams> sparse_attn_prefill_generic();  // "cuda/generic"

}  // namespace strata::cuda
