#include <algorithm>
#include <limits>

#include "backends/opencl/attention/plan.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/implementation.h"

namespace strata::opencl {
namespace {

constexpr AttnKernels kKernels{.module = "sparse_attn_prefill",
                               .matrix_module = "sparse_attn_prefill_xmx",
                               .names = {"sparse_attn_prefill_512", "sparse_attn_prefill_576", nullptr},
                               .matrix_names = {"sparse_attn_prefill_512_xmx", "sparse_attn_prefill_576_xmx"}};

AttnShape shape_of(const SparseAttnPrefillParams& p) {
  return {.tokens = p.q.shape[0],
          .heads = p.q.shape[1],
          .value_dim = p.out.shape[2],
          .rows = p.indices.shape[1],
          .is_batch_invariant = p.batch_invariant};
}

bool has_aligned_rows(const SparseAttnPrefillParams& p) { return p.kv.stride[0] * 2 % 16 == 0; }

Support supports_xmx(const SparseAttnPrefillParams& p, const Capabilities& c) {
  if (!has_aligned_rows(p)) return Support::no("takes rows that are multiples of 16 bytes apart");
  return supports_matrix(c, p.q);
}

int64_t workspace_bytes(const SparseAttnPrefillParams& p, const Capabilities&) { return plan_attention(shape_of(p)).workspace_bytes; }

void run(const SparseAttnPrefillParams& p, Variant variant, const ExecutionContext& context) {
  const SparseAttnPrefillCall call{
      .attention =
          attention_of({.q = p.q, .sink = p.attn_sink, .out = p.out, .lse = p.lse, .max_logits = p.max_logits, .scale = p.softmax_scale}),
      .kv = address(p.kv),
      .indices = address(p.indices),
      .lengths = address(p.topk_length),
      .kv_stride = p.kv.stride[0],
      .indices_stride = p.indices.stride[0],
      .num_rows = static_cast<int32_t>(std::min<int64_t>(p.kv.shape[0], std::numeric_limits<int32_t>::max())),
      .width = static_cast<int32_t>(p.indices.shape[1])};
  const bool is_aligned_call = call.attention.is_q_aligned && has_aligned_rows(p) && call.kv % 16 == 0;
  launch_attention(context, kernel_of(kKernels, variant, p.q.shape[2], is_aligned_call), call, shape_of(p));
}

}  // namespace

std::vector<Implementation<SparseAttnPrefillParams>> sparse_attn_prefill() {
  return with_matrix<SparseAttnPrefillParams>({.workspace_bytes = workspace_bytes, .run = run},
                                              {.supports = supports_xmx, .workspace_bytes = workspace_bytes, .run = run});
}

}  // namespace strata::opencl
