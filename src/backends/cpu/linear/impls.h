// The CPU's linear implementations; impls.cpp has the list, fastest first.
#pragma once

#include <vector>

#include "strata/op_set.h"

namespace strata::cpu {

// Strata's AMX products, with bf16 or unchanged e4m3 weights; empty lists on architectures other than x86-64.
std::vector<Implementation<LinearParams>> amx_linear();
std::vector<Implementation<GroupedLinearParams>> amx_grouped_linear();
std::vector<WeightPacking> amx_weight_packings();

// bf16 products by oneDNN with bf16 weights, on machines with AVX512_BF16; empty lists in builds without oneDNN.
std::vector<Implementation<LinearParams>> onednn_linear();
std::vector<Implementation<GroupedLinearParams>> onednn_grouped_linear();
std::vector<WeightPacking> onednn_weight_packings();

// Strata's fp32 products, on every machine. Up to kSimdFewRows tokens weights are widened in registers, for more tokens in memory.
inline constexpr int64_t kSimdFewRows = 8;
std::vector<Implementation<LinearParams>> simd_linear();
std::vector<Implementation<GroupedLinearParams>> simd_grouped_linear();

// Group g of a grouped call as plain views: x [T, K] and y [T, N] with the row strides of the grouped views.
TensorView group_view(const TensorView& v, int64_t group);

}  // namespace strata::cpu
