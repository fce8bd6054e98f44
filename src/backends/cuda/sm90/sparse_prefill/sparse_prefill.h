// The Hopper implementation of sparse_attn_prefill; sparse_attn_prefill() of cuda_ops.h puts it first.
#pragma once

#include "backends/cuda/common/implementation.h"
#include "strata/ops/sparse_attention.h"

namespace strata::cuda {

Implementation<SparseAttnPrefillParams> sparse_attn_prefill_sm90();

}  // namespace strata::cuda
