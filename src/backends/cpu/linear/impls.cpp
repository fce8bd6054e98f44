#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/linear/impls.h"
#include "backends/cpu/linear/quant.h"
#include "core/join.h"

namespace strata::cpu {

std::vector<Implementation<ops::QuantizeRowsParams>> quantize_rows() {
  using P = ops::QuantizeRowsParams;
  Implementation<P> impl;
  impl.name = "cpu/simd";
  impl.supports = [](const P&, const Device& device) {
    return device.id().kind == DeviceKind::cpu ? Support::yes() : Support::no("runs on host memory only");
  };
  impl.workspace_bytes = [](const P&, const Device&) { return 0; };
  impl.run = [](const P& p, const ExecutionContext& context) {
    parallel_for(context.device, p.x.shape[0], 1, [&](int64_t t) {
      quantize_row(context.device, p.x.row<Bf16>(t), p.x.shape[1], p.format, p.values.row<E4m3>(t), p.scale.row<float>(t));
    });
  };
  return {std::move(impl)};
}

TensorView group_view(const TensorView& v, int64_t group) {
  TensorView result = v;
  result.rank = 2;
  result.shape = {v.shape[0], v.shape[2], 0, 0};
  result.stride = {v.stride[0], v.stride[2], 0, 0};
  if (v.data != nullptr) result.data = static_cast<std::byte*>(v.data) + group * v.stride[1] * static_cast<int64_t>(size_of(v.dtype));
  return result;
}

// cpu/amx first: on the shapes of V4-Flash, measured alternately in one process, it needed 0.4 to 0.6 of oneDNN's time for 1 to 16 tokens
// (FP8 weights stay bytes) and 0.6 to 1.0 of it for 64 to 2048. oneDNN takes bf16 weights only: for e4m3 weights cpu/simd is faster.
std::vector<Implementation<LinearParams>> linear() { return join(amx_linear(), join(onednn_linear(), simd_linear())); }
std::vector<Implementation<GroupedLinearParams>> grouped_linear() {
  return join(amx_grouped_linear(), join(onednn_grouped_linear(), simd_grouped_linear()));
}
std::vector<WeightPacking> weight_packings() {
  std::vector<WeightPacking> packings = amx_weight_packings();
  for (auto& packing : onednn_weight_packings()) packings.push_back(std::move(packing));
  return packings;
}

}  // namespace strata::cpu
