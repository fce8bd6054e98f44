#include "backends/opencl/attention/plan.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/implementation.h"

namespace strata::opencl {
namespace {

constexpr AttnKernels kKernels{.module = "sparse_attn_decode",
                               .matrix_module = "sparse_attn_decode_xmx",
                               .names = {"sparse_attn_decode_512", "sparse_attn_decode_576", nullptr},
                               .matrix_names = {"sparse_attn_decode_512_xmx", "sparse_attn_decode_576_xmx"}};

AttnShape shape_of(const SparseAttnDecodeParams& p) {
  return {.tokens = p.q.shape[0] * p.q.shape[1],
          .heads = p.q.shape[2],
          .value_dim = p.out.shape[3],
          .rows = p.indices.shape[2] + (p.extra_cache.present() ? p.extra_indices.shape[2] : 0),
          .is_batch_invariant = p.batch_invariant};
}

AttnScope scope_of(const PagedCache& cache, const TensorView& indices, const TensorView& lengths) {
  if (!cache.present()) return {};
  return {.cache = cache_view(cache),
          .indices = address(indices),
          .lengths = address(lengths),
          .entry_stride = indices.stride[0],
          .token_stride = indices.stride[1],
          .width = static_cast<int32_t>(indices.shape[2])};
}

Support supports_xmx(const SparseAttnDecodeParams& p, const Capabilities& c) {
  for (const Support& support : {supports_matrix(c, p.q), supports_matrix(p.cache), supports_matrix(p.extra_cache)}) {
    if (!support) return support;
  }
  return Support::yes();
}

int64_t workspace_bytes(const SparseAttnDecodeParams& p, const Capabilities&) { return plan_attention(shape_of(p)).workspace_bytes; }

void run(const SparseAttnDecodeParams& p, Variant variant, const ExecutionContext& context) {
  const SparseAttnDecodeCall call{
      .attention =
          attention_of({.q = p.q, .sink = p.attn_sink, .out = p.out, .lse = p.lse, .max_logits = p.max_logits, .scale = p.softmax_scale}),
      .main = scope_of(p.cache, p.indices, p.topk_length),
      .extra = scope_of(p.extra_cache, p.extra_indices, p.extra_topk_length)};
  const bool is_aligned_call = call.attention.is_q_aligned && is_aligned(p.cache) && is_aligned(p.extra_cache);
  launch_attention(context, kernel_of(kKernels, variant, p.q.shape[3], is_aligned_call), call, shape_of(p));
}

}  // namespace

std::vector<Implementation<SparseAttnDecodeParams>> sparse_attn_decode() {
  return with_matrix<SparseAttnDecodeParams>({.workspace_bytes = workspace_bytes, .run = run},
                                             {.supports = supports_xmx, .workspace_bytes = workspace_bytes, .run = run});
}

}  // namespace strata::opencl
