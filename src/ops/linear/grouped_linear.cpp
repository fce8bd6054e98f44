#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "formats/quantize.h"
#include "ops/factories.h"
#include "ops/indices/value_checks.h"
#include "ops/linear/fusions.h"
#include "ops/linear/linear_checks.h"

namespace strata::ops {
namespace {

void check(const GroupedLinearParams& p, DeviceId device) {
  ParamCheck c("grouped_linear", device);
  c.view("x", p.x, {DType::bf16, DType::e4m3}, {kAny, kAny, kAny});
  const int64_t tokens = p.x.shape[0], groups = p.x.shape[1], k = p.x.shape[2];
  if (p.x.dtype == DType::e4m3) {
    c.require(k % kActivationBlock == 0, "x must have a multiple of {} channels when it is e4m3, is {}", int{kActivationBlock}, p.x);
    c.view("x_scale", p.x_scale, DType::f32, {tokens, groups, k / kActivationBlock});
  } else {
    c.require(!p.x_scale.present(), "x_scale must be absent with a bf16 x, is {}", p.x_scale);
  }
  check_weight(c, p.weight, groups, k);
  const int64_t n = p.weight->n;
  c.view("y", p.y, {DType::bf16, DType::e4m3}, {tokens, groups, n});
  if (p.y.dtype == DType::e4m3) {
    c.require(n % kActivationBlock == 0, "weight.n must be a multiple of {} when y is e4m3, is {}", int{kActivationBlock}, n);
    c.require(p.y_format != ActivationFormat::bf16, "y_format must be an fp8 format when y is e4m3, is bf16");
    c.contiguous("y", p.y);
    c.view("y_scale", p.y_scale, DType::f32, {tokens, groups, n / kActivationBlock});
    c.contiguous("y_scale", p.y_scale);
  } else {
    c.require(!p.y_scale.present(), "y_scale must be absent with a bf16 y, is {}", p.y_scale);
  }
  check_output(c, "y", p.y);
  check_alignment(c, p.x, *p.weight, p.y);
}

}  // namespace

Op<GroupedLinearParams> make_grouped_linear() {
  return {"grouped_linear", check,
          join(cuda::grouped_linear(), opencl::grouped_linear(), cpu::grouped_linear(), reference::grouped_linear()),
          with_grouped_linear_fusions};
}

}  // namespace strata::ops
