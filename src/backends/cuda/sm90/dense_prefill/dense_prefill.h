// The Hopper implementation of dense_attn_prefill; dense_attn_prefill() of cuda_ops.h puts it first.
#pragma once

#include "backends/cuda/common/implementation.h"
#include "strata/ops/dense_attention.h"

namespace strata::cuda {

Implementation<DenseAttnPrefillParams> dense_attn_prefill_sm90();

}  // namespace strata::cuda
