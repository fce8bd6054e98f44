// The implementations of the two linear ops, in the order in which impls.cpp lists them.
#pragma once

#include <vector>

#include "strata/op_set.h"

namespace strata::cuda {

// "cuda/sm90": our FP8 kernel for few tokens on Hopper.
std::vector<Implementation<LinearParams>> few_tokens_linear();
std::vector<Implementation<GroupedLinearParams>> few_tokens_grouped_linear();
// Whether it makes the codes of a call that it takes and that wants some.
bool few_tokens_leaves_codes(const GroupedLinearParams& p, const Device& device);
// "cuda/sm90_many": our FP8 kernel for many tokens on Hopper.
std::vector<Implementation<LinearParams>> many_tokens_linear();
std::vector<Implementation<GroupedLinearParams>> many_tokens_grouped_linear();
// "cuda/sm90_many_few": whole tiles of tokens by that, the last tokens by the kernel for few.
std::vector<Implementation<LinearParams>> many_and_few_tokens_linear();
// "cuda/cublaslt_fp8": block-scaled e4m3 products by cuBLASLt, on Hopper.
std::vector<Implementation<LinearParams>> cublaslt_fp8_linear();
std::vector<Implementation<GroupedLinearParams>> cublaslt_fp8_one_group();
// "cuda/smxx": our bf16 kernel for few tokens.
std::vector<Implementation<LinearParams>> few_tokens_bf16_linear();
std::vector<Implementation<GroupedLinearParams>> few_tokens_bf16_grouped_linear();
// "cuda/sm90_bf16": our bf16 kernel for few tokens on Hopper.
std::vector<Implementation<LinearParams>> hopper_bf16_linear();
std::vector<Implementation<GroupedLinearParams>> hopper_bf16_grouped_linear();
// The same as few_tokens_leaves_codes.
bool hopper_bf16_leaves_codes(const GroupedLinearParams& p, const Device& device);
// "cuda/sm90_mixed": bf16 activations and e4m3 weights on Hopper, packed.
std::vector<Implementation<GroupedLinearParams>> mixed_grouped_linear();
// The same as few_tokens_leaves_codes.
bool mixed_leaves_codes(const GroupedLinearParams& p, const Device& device);
std::vector<WeightPacking> mixed_weight_packings();
// "cuda/cublaslt": bf16 products by cuBLASLt; e4m3 weights dequantised when packed.
std::vector<Implementation<LinearParams>> cublaslt_bf16_linear();
std::vector<Implementation<GroupedLinearParams>> cublaslt_bf16_grouped_linear();
std::vector<WeightPacking> cublaslt_weight_packings();

}  // namespace strata::cuda
