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

// [B, H, S] of statistics.
TokenStride statistics_stride(const TensorView& v) { return {.entry = v.stride[0], .token = v.stride[2], .head = v.stride[1]}; }

Support supports_xmx(const SparseAttnDecodeParams& p, const Capabilities& c) {
  for (const Support& support :
       {supports_matrix(c, p.q.shape[3], stride_of_entries(p.q)), supports_matrix(p.cache), supports_matrix(p.extra_cache)}) {
    if (!support) return support;
  }
  return Support::yes();
}

int64_t workspace_bytes(const SparseAttnDecodeParams& p, const Capabilities&) { return plan_attention(shape_of(p)).workspace_bytes; }

void run(const SparseAttnDecodeParams& p, Variant variant, const ExecutionContext& context) {
  const TokenStride q = stride_of_entries(p.q), out = stride_of_entries(p.out);
  const SparseAttnDecodeCall call{.attention = {.q = address(p.q),
                                                .sink = address(p.attn_sink),
                                                .out = address(p.out),
                                                .lse = address(p.lse),
                                                .max_logits = address(p.max_logits),
                                                .q_stride = q,
                                                .out_stride = out,
                                                .lse_stride = statistics_stride(p.lse),
                                                .max_stride = statistics_stride(p.max_logits),
                                                .queries = static_cast<int32_t>(p.q.shape[1]),
                                                .num_heads = static_cast<int32_t>(p.q.shape[2]),
                                                .head_dim = static_cast<int32_t>(p.q.shape[3]),
                                                .value_dim = static_cast<int32_t>(p.out.shape[3]),
                                                .is_q_aligned = is_aligned(p.q, q),
                                                .is_out_aligned = is_aligned(p.out, out),
                                                .scale = p.softmax_scale,
                                                .work = {}},
                                  .main = scope_of(p.cache, p.indices, p.topk_length),
                                  .extra = scope_of(p.extra_cache, p.extra_indices, p.extra_topk_length)};
  const bool is_aligned_call = call.attention.is_q_aligned && is_aligned(p.cache) && is_aligned(p.extra_cache);
  launch_attention(context, kernel_of(kKernels, variant, p.q.shape[3], is_aligned_call), call, shape_of(p));
}

}  // namespace

std::vector<Implementation<SparseAttnDecodeParams>> sparse_attn_decode() {
  const Traits<SparseAttnDecodeParams> traits{.workspace_bytes = workspace_bytes, .run = run};
  const Traits<SparseAttnDecodeParams> xmx{.supports = supports_xmx, .workspace_bytes = workspace_bytes, .run = run};
  return {implementation<SparseAttnDecodeParams>(Flavour::xmx, xmx), implementation<SparseAttnDecodeParams>(Flavour::basic, traits),
          implementation<SparseAttnDecodeParams>(Flavour::xmx_emulated, xmx)};
}

}  // namespace strata::opencl
