// The implementations of sparse_attn_decode on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/sparse_attention.h"

namespace strata::cuda {

// "cuda/sm90": fp8_ds_mla_v4 and fp8_ds_mla caches. Normalises queries and rotates results by itself.
Implementation<SparseAttnDecodeParams> sparse_attn_decode_sm90();
// Those that leave queries and results to the ops for them.
Implementation<SparseAttnDecodeParams> sparse_attn_decode_bf16_sm90();  // "cuda/sm90_bf16": bf16 and fp8_tensor caches
Implementation<SparseAttnDecodeParams> sparse_attn_decode_smxx();       // "cuda/smxx"
Implementation<SparseAttnDecodeParams> sparse_attn_decode_generic();    // "cuda/generic"

}  // namespace strata::cuda
