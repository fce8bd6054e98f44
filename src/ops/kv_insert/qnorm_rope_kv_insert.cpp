#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"

namespace strata::ops {
namespace {

void check(const QNormRopeKvInsertParams& p, DeviceId device) {
  ParamCheck c("qnorm_rope_kv_insert", device);
  check_eps(c, p.eps);
  c.view("q", p.q, DType::bf16, {kAny, kAny, kAny});
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1], dim = p.q.shape[2];
  c.view("kv", p.kv, DType::bf16, {tokens, dim});
  check_rotary_views(c, p.positions, p.cos_sin, tokens, dim);
  c.view("q_out", p.q_out, {DType::bf16, DType::e4m3}, {tokens, kAny, dim});
  check_output(c, "q_out", p.q_out);
  if (p.q_out.dtype == DType::e4m3) {
    c.require(p.q_out.shape[1] == heads, "q_out must have the {} heads of q when it is e4m3, has {}", heads, p.q_out.shape[1]);
    c.require(!p.slot_mapping.present() || p.cache.format == KvFormat::fp8_tensor,
              "q_out must be bf16 with a cache of format {}, is {}: e4m3 queries belong to fp8_tensor", to_string(p.cache.format), p.q_out);
    check_positive(c, "q_scale_inv", p.q_scale_inv);
  } else {
    c.require(p.q_out.shape[1] >= heads, "q_out must have at least the {} heads of q, has {}", heads, p.q_out.shape[1]);
  }
  if (p.slot_mapping.present()) {
    check_key_insert(c, p.slot_mapping, p.cache, p.cos_sin, tokens, dim);
  }
  c.values_in("positions", p.positions, 0, p.cos_sin.shape[0], false);
}

}  // namespace

Op<QNormRopeKvInsertParams> make_qnorm_rope_kv_insert() {
  return {
      "qnorm_rope_kv_insert", check,
      join(cuda::qnorm_rope_kv_insert(), opencl::qnorm_rope_kv_insert(), cpu::qnorm_rope_kv_insert(), reference::qnorm_rope_kv_insert())};
}

}  // namespace strata::ops
