// The Hopper implementation of sparse_attn_decode over bf16 caches; sparse_attn_decode() of cuda_ops.h has it behind that over fp8 rows.
#pragma once

#include "backends/cuda/common/implementation.h"
#include "strata/ops/sparse_attention.h"

namespace strata::cuda {

// Leaves outputs rotated.
Implementation<SparseAttnDecodeParams> sparse_attn_decode_bf16_sm90();

}  // namespace strata::cuda
