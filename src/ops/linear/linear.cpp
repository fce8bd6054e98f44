#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "formats/quantize.h"
#include "ops/factories.h"
#include "ops/indices/value_checks.h"
#include "ops/linear/linear_checks.h"

namespace strata::ops {
namespace {

void check(const LinearParams& p, DeviceId device) {
  ParamCheck c("linear", device);
  c.view("x", p.x, {DType::bf16, DType::e4m3}, {kAny, kAny});
  if (p.x.dtype == DType::e4m3) {
    c.require(p.activation != ActivationFormat::bf16, "activation must be the fp8 format of the codes when x is e4m3, is bf16");
    c.view("x_scale", p.x_scale, DType::f32, {p.x.shape[0], activation_blocks(p.x.shape[1])});
  } else {
    c.require(!p.x_scale.present(), "x_scale must be absent with a bf16 x, is {}", p.x_scale);
  }
  check_weight(c, p.weight, 1, p.x.shape[1]);
  c.view("y", p.y, {DType::bf16, DType::f32}, {p.x.shape[0], p.weight->n});
  check_output(c, "y", p.y);
  check_alignment(c, p.x, *p.weight, p.y);
}

}  // namespace

Op<LinearParams> make_linear() { return {"linear", check, join(cuda::linear(), opencl::linear(), cpu::linear(), reference::linear())}; }

std::vector<WeightPacking> make_weight_packings() { return join(cuda::weight_packings(), cpu::weight_packings()); }

}  // namespace strata::ops
