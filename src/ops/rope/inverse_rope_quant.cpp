#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"

namespace strata::ops {
namespace {

void check(const InverseRopeQuantParams& p, DeviceId device) {
  ParamCheck c("inverse_rope_quant", device);
  c.view("o", p.o, DType::bf16, {kAny, kAny, kAny});
  const int64_t tokens = p.o.shape[0], heads = p.o.shape[1], dim = p.o.shape[2];
  c.require(dim > 0 && dim % kActivationBlock == 0, "o must have a multiple of {} values per head, has {}", int{kActivationBlock}, dim);
  check_rotary_views(c, p.positions, p.cos_sin, tokens, dim);
  c.view("out", p.out, DType::e4m3, {tokens, kAny, kAny});
  const int64_t groups = p.out.shape[1], width = p.out.shape[2];
  c.require(groups >= 1 && heads % groups == 0 && width == heads / groups * dim,
            "out must have shape [{}, G, H / G * {}] with G a divisor of the {} heads of o, is {}", tokens, dim, heads, p.out);
  c.contiguous("out", p.out);
  c.view("scale", p.scale, DType::f32, {tokens, groups, width / kActivationBlock});
  c.contiguous("scale", p.scale);
  c.values_in("positions", p.positions, 0, p.cos_sin.shape[0], false);
}

}  // namespace

Op<InverseRopeQuantParams> make_inverse_rope_quant() {
  return {"inverse_rope_quant", check,
          join(cuda::inverse_rope_quant(), opencl::inverse_rope_quant(), cpu::inverse_rope_quant(), reference::inverse_rope_quant())};
}

}  // namespace strata::ops
