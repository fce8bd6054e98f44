// The CPU's linear implementations, fastest first in impls.cpp.
#pragma once

#include <vector>

#include "strata/op_set.h"

namespace strata::cpu {

// Our own AMX products, bf16 weights or e4m3 ones as they are; empty lists on other architectures than x86-64.
std::vector<Implementation<LinearParams>> amx_linear();
std::vector<Implementation<GroupedLinearParams>> amx_grouped_linear();
std::vector<WeightPacking> amx_weight_packings();

// bf16 products by oneDNN, of bf16 weights, on machines with AVX512_BF16; empty lists in builds without it.
std::vector<Implementation<LinearParams>> onednn_linear();
std::vector<Implementation<GroupedLinearParams>> onednn_grouped_linear();
std::vector<WeightPacking> onednn_weight_packings();

// Our own fp32 products, on every machine. Of up to kSimdFewRows tokens weights are widened in registers, of more into memory.
inline constexpr int64_t kSimdFewRows = 8;
std::vector<Implementation<LinearParams>> simd_linear();
std::vector<Implementation<GroupedLinearParams>> simd_grouped_linear();

// Group g of a grouped call as plain views: x [T, K] and y [T, N] with the row strides of the grouped ones.
TensorView group_view(const TensorView& v, int64_t group);

}  // namespace strata::cpu
