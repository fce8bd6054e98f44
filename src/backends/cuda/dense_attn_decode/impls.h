// The implementations of dense_attn_decode on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/dense_attention.h"

namespace strata::cuda {

Implementation<DenseAttnDecodeParams> dense_attn_decode_sm90();     // "cuda/sm90"
Implementation<DenseAttnDecodeParams> dense_attn_decode_smxx();     // "cuda/smxx"
Implementation<DenseAttnDecodeParams> dense_attn_decode_generic();  // "cuda/generic"

}  // namespace strata::cuda
