// The Hopper implementation of sparse_attn_decode; sparse_attn_decode() of cuda_ops.h puts it first.
#pragma once

#include "backends/cuda/common/implementation.h"
#include "strata/ops/sparse_attention.h"

namespace strata::cuda {

Implementation<SparseAttnDecodeParams> sparse_attn_decode_sm90();

}  // namespace strata::cuda
