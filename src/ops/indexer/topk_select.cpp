#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indices/value_checks.h"

namespace strata::ops {
namespace {

void check(const TopkSelectParams& p, DeviceId device) {
  ParamCheck c("topk_select", device);
  c.view("logits", p.logits, DType::f32, {kAny, kAny});
  const int64_t tokens = p.logits.shape[0];
  c.view("lengths", p.lengths, DType::i32, {tokens});
  c.view("topk_indices", p.topk_indices, DType::i32, {tokens, kAny});
  c.require(p.topk_indices.shape[1] >= 1, "topk_indices must have at least 1 column, has {}", p.topk_indices.shape[1]);
  check_output(c, "topk_indices", p.topk_indices);
  c.values_in("lengths", p.lengths, 0, p.logits.shape[1] + 1, false);
}

}  // namespace

Op<TopkSelectParams> make_topk_select() {
  return {"topk_select", check, join(cuda::topk_select(), opencl::topk_select(), cpu::topk_select(), reference::topk_select())};
}

}  // namespace strata::ops
