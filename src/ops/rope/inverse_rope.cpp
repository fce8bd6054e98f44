#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"

namespace strata::ops {
namespace {

void check(const InverseRopeParams& p, DeviceId device) {
  ParamCheck c("inverse_rope", device);
  c.view("o", p.o, DType::bf16, {kAny, kAny, kAny});
  const int64_t tokens = p.o.shape[0], heads = p.o.shape[1], dim = p.o.shape[2];
  check_rotary_views(c, p.positions, p.cos_sin, tokens, dim);
  c.view("out", p.out, DType::bf16, {tokens, heads, dim});
  check_output(c, "out", p.out);
  c.values_in("positions", p.positions, 0, p.cos_sin.shape[0], false);
}

}  // namespace

Op<InverseRopeParams> make_inverse_rope() {
  return {"inverse_rope", check, join(cuda::inverse_rope(), opencl::inverse_rope(), cpu::inverse_rope(), reference::inverse_rope())};
}

}  // namespace strata::ops
