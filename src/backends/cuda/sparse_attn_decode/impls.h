// The implementations of sparse_attn_decode on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "backends/cuda/sparse_attn_decode/sm90/planner.h"
#include "strata/ops/sparse_attention.h"

namespace strata::cuda {

// fp8_ds_mla_v4 and fp8_ds_mla caches on Hopper. They normalise queries and rotate results themselves. "cuda/sm90_h64" and so on.
Implementation<SparseAttnDecodeParams> sparse_attn_decode_sm90(sparse_decode::Kernel kernel, const sparse_decode::Planner& planner);
// By the call's schedule, with few heads or 64 per CTA: "cuda/sm90_few_heads_scheduled", "cuda/sm90_h64_scheduled".
Implementation<SparseAttnDecodeParams> sparse_attn_decode_sm90_scheduled(bool few_heads, const sparse_decode::Planner& planner);
// Implementations that leave queries and results to separate ops.
Implementation<SparseAttnDecodeParams> sparse_attn_decode_bf16_sm90();  // "cuda/sm90_bf16": bf16 and fp8_tensor caches
Implementation<SparseAttnDecodeParams> sparse_attn_decode_smxx();       // "cuda/smxx"
Implementation<SparseAttnDecodeParams> sparse_attn_decode_generic();    // "cuda/generic"

}  // namespace strata::cuda
