#include "backends/opencl/norm/call.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/alignment.h"
#include "backends/opencl/runtime/implementation.h"

namespace strata::opencl {
namespace {

NormRows rows_of(const TensorView& x, const TensorView& weight, const TensorView& y, const TensorView& scale, ActivationFormat format) {
  const bool is_fp8 = format != ActivationFormat::bf16;
  return {.x = address(x),
          .weight = address(weight),
          .y = address(y),
          .scale = address(scale),
          .x_stride = x.stride[0],
          .y_stride = y.stride[0],
          .scale_stride = scale.stride[0],
          .columns = static_cast<int32_t>(x.shape[1]),
          .is_aligned = rows_begin_at(x, 16) && rows_begin_at(y, is_fp8 ? 8 : 16) && address(weight) % 16 == 0,
          .is_fp8 = is_fp8,
          .is_ue8m0 = format == ActivationFormat::fp8_ue8m0};
}

void run(const RmsNormPairParams& p, Variant variant, const ExecutionContext& context) {
  const NormCall call{.q = p.q.present() ? rows_of(p.q, p.q_weight, p.q_out, p.q_scale, p.q_format) : NormRows{},
                      .kv = rows_of(p.kv, p.kv_weight, p.kv_out, {}, ActivationFormat::bf16),
                      .eps = p.eps,
                      .first = p.q.present() ? 0 : 1};
  launch(context, {"norm", variant, "norm"}, call,
         {.groups = {static_cast<size_t>(p.kv.shape[0]), p.q.present() ? 2u : 1u, 1}, .items = {kNormItems, 1, 1}});
}

}  // namespace

std::vector<Implementation<RmsNormPairParams>> rms_norm_pair() {
  return {implementation<RmsNormPairParams>(Flavour::subgroup, {.run = run}),
          implementation<RmsNormPairParams>(Flavour::basic, {.run = run})};
}

}  // namespace strata::opencl
