#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/sparse_attention/attention_checks.h"

namespace strata::ops {
namespace {

void check(const MergeAttnStatesParams& p, DeviceId device) {
  ParamCheck c("merge_attn_states", device);
  c.view("o", p.o, {DType::f32, DType::bf16}, {kAny, kAny, kAny, kAny});
  const int64_t parts = p.o.shape[0], tokens = p.o.shape[1], heads = p.o.shape[2];
  c.require(parts >= 1, "o must have at least 1 part, has {}", parts);
  c.view("lse", p.lse, DType::f32, {parts, tokens, heads});
  check_sink(c, p.attn_sink, heads);
  c.view("out", p.out, {DType::bf16, DType::f32}, {tokens, heads, p.o.shape[3]});
  check_output(c, "out", p.out);
  c.optional("lse_out", p.lse_out, DType::f32, {tokens, heads});
  check_output(c, "lse_out", p.lse_out);
  // The two existing conventions; 0 means that the caller did not set it.
  c.require(!p.lse_out.present() || std::isinf(p.empty_lse), "empty_lse must be +inf or -inf, is {}", p.empty_lse);
}

}  // namespace

Op<MergeAttnStatesParams> make_merge_attn_states() {
  return {"merge_attn_states", check,
          join(cuda::merge_attn_states(), opencl::merge_attn_states(), cpu::merge_attn_states(), reference::merge_attn_states())};
}

}  // namespace strata::ops
