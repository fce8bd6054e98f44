// The Hopper implementation of sparse_attn_decode over bf16 and fp8_tensor caches; sparse_attn_decode() of cuda_ops.h has it behind that of
// rows with scales.
#pragma once

#include "backends/cuda/common/implementation.h"
#include "strata/ops/sparse_attention.h"

namespace strata::cuda {

// Leaves outputs rotated.
Implementation<SparseAttnDecodeParams> sparse_attn_decode_bf16_sm90();

}  // namespace strata::cuda
