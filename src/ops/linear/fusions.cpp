#include "ops/linear/fusions.h"

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "formats/quantize.h"
#include "ops/factories.h"
#include "ops/fusion.h"
#include "contracts/quantize_rows.h"

namespace strata::ops {
namespace {

using P = GroupedLinearParams;

constexpr Fusion<P, QuantizeRowsParams> kQuantisedOutput{
    .name = "y_scale",
    .kind = FusionKind::epilogue,
    .requested = [](const P& p) { return p.y.dtype == DType::e4m3; },
    .without =
        [](const P& p, Arena& arena) {
          P rest = p;
          rest.y = arena.tensor(DType::bf16, {p.y.shape[0], p.y.shape[1], p.y.shape[2]});
          rest.y_scale = {};
          rest.y_format = ActivationFormat::bf16;
          return rest;
        },
    .call =
        [](const P& p, const P& rest) {
          const int64_t tokens = p.y.shape[0], k = p.y.shape[1] * p.y.shape[2];
          const auto rows = [tokens](const TensorView& v, int64_t columns) {
            return TensorView::contiguous(v.data, v.dtype, v.device, {tokens, columns});
          };
          return QuantizeRowsParams{
              .x = rows(rest.y, k), .format = p.y_format, .values = rows(p.y, k), .scale = rows(p.y_scale, k / kActivationBlock)};
        },
    .always_reserve = true};

}  // namespace

Implementation<P> with_grouped_linear_fusions(Implementation<P> product) {
  return with_fusion(std::move(product), kQuantisedOutput,
                     join(cuda::quantize_rows(), opencl::quantize_rows(), cpu::quantize_rows(), reference::quantize_rows()));
}

}  // namespace strata::ops
