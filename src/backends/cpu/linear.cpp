#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/linear_impls.h"
#include "ops/factories.h"

namespace strata::cpu {

TensorView group_view(const TensorView& v, int64_t group) {
  TensorView result = v;
  result.rank = 2;
  result.shape = {v.shape[0], v.shape[2], 0, 0};
  result.stride = {v.stride[0], v.stride[2], 0, 0};
  if (v.data != nullptr) result.data = static_cast<std::byte*>(v.data) + group * v.stride[1] * static_cast<int64_t>(size_of(v.dtype));
  return result;
}

// oneDNN first: its products of many tokens are the fastest here, by up to 3x (docs/performance.md). cpu/amx keeps FP8 weights as bytes,
// so it reads half as much for a few tokens; Config::force chooses it for machines that only decode.
std::vector<Implementation<LinearParams>> linear() { return ops::join(onednn_linear(), ops::join(amx_linear(), simd_linear())); }
std::vector<Implementation<GroupedLinearParams>> grouped_linear() {
  return ops::join(onednn_grouped_linear(), ops::join(amx_grouped_linear(), simd_grouped_linear()));
}
std::vector<WeightPacking> weight_packings() {
  std::vector<WeightPacking> packings = onednn_weight_packings();
  for (auto& packing : amx_weight_packings()) packings.push_back(std::move(packing));
  return packings;
}

}  // namespace strata::cpu
