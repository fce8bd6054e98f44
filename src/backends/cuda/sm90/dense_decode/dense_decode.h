// The Hopper implementation of dense_attn_decode; dense_attn_decode() of cuda_ops.h puts it first.
#pragma once

#include "backends/cuda/common/implementation.h"
#include "strata/ops/dense_attention.h"

namespace strata::cuda {

Implementation<DenseAttnDecodeParams> dense_attn_decode_sm90();

}  // namespace strata::cuda
