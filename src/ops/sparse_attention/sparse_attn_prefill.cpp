#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/sparse_attention/attention_checks.h"

namespace strata::ops {
namespace {

void check(const SparseAttnPrefillParams& p, DeviceId device) {
  ParamCheck c("sparse_attn_prefill", device);
  c.view("q", p.q, DType::bf16, {kAny, kAny, kAny});
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1], head_dim = p.q.shape[2];
  check_head_shape(c, heads, head_dim);
  c.view("kv", p.kv, DType::bf16, {kAny, head_dim});
  c.view("indices", p.indices, DType::i32, {tokens, kAny});
  c.optional("topk_length", p.topk_length, DType::i32, {tokens});
  check_sink(c, p.attn_sink, heads);
  check_positive(c, "softmax_scale", p.softmax_scale);
  c.view("out", p.out, DType::bf16, {tokens, heads, kAny});
  check_value_dim(c, p.out.shape[2], head_dim);
  check_output(c, "out", p.out);
  c.optional("lse", p.lse, DType::f32, {tokens, heads});
  check_output(c, "lse", p.lse);
  c.optional("max_logits", p.max_logits, DType::f32, {tokens, heads});
  check_output(c, "max_logits", p.max_logits);
  c.values_in("topk_length", p.topk_length, 0, p.indices.shape[1] + 1, false);
}

}  // namespace

Op<SparseAttnPrefillParams> make_sparse_attn_prefill() {
  return {"sparse_attn_prefill", check,
          join(cuda::sparse_attn_prefill(), opencl::sparse_attn_prefill(), cpu::sparse_attn_prefill(), reference::sparse_attn_prefill())};
}

}  // namespace strata::ops
