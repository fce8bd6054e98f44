// The implementations of the two linear ops on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/linear.h"

namespace strata::cuda {

// FP8 on Hopper. "cuda/sm90_many": many tokens.
Implementation<LinearParams> many_tokens_linear();
Implementation<GroupedLinearParams> many_tokens_grouped_linear();
// "cuda/sm90_many_few": whole tiles of tokens by that kernel, the last tokens by a kernel for few.
Implementation<LinearParams> many_and_few_tokens_linear();
// "cuda/sm90_streamed": few tokens, all tiles in flight at once.
Implementation<LinearParams> streamed_linear();
Implementation<GroupedLinearParams> streamed_grouped_linear();
// "cuda/sm90_many_tiles": few tokens, more tiles than SMs.
Implementation<LinearParams> many_tiles_linear();
// "cuda/cublaslt_fp8": block-scaled e4m3 products by cuBLASLt.
Implementation<LinearParams> cublaslt_fp8_linear();
Implementation<GroupedLinearParams> cublaslt_fp8_one_group();

// bf16 activations and packed e4m3 weights on Hopper. "cuda/sm90_mixed": few tokens. "cuda/sm90_mixed_many": many tokens.
// "cuda/sm90_mixed_many_few": whole tiles of tokens by the latter, the last tokens by the former.
Implementation<GroupedLinearParams> mixed_grouped_linear();
Implementation<GroupedLinearParams> mixed_many_grouped_linear();
Implementation<GroupedLinearParams> mixed_many_few_grouped_linear();
std::vector<WeightPacking> mixed_weight_packings();

// bf16 weights. "cuda/sm90_bf16": few tokens on Hopper. "cuda/smxx": few tokens.
Implementation<LinearParams> hopper_bf16_linear();
Implementation<GroupedLinearParams> hopper_bf16_grouped_linear();
Implementation<LinearParams> few_tokens_bf16_linear();
Implementation<GroupedLinearParams> few_tokens_bf16_grouped_linear();
// "cuda/cublaslt": bf16 products by cuBLASLt; e4m3 weights dequantised when packed.
Implementation<LinearParams> cublaslt_bf16_linear();
Implementation<GroupedLinearParams> cublaslt_bf16_grouped_linear();
std::vector<WeightPacking> cublaslt_weight_packings();

}  // namespace strata::cuda
