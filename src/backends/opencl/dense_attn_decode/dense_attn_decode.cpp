#include "backends/opencl/attention/plan.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/implementation.h"

namespace strata::opencl {
namespace {

constexpr AttnKernels kKernels{.module = "dense_attn_decode",
                               .matrix_module = "dense_attn_decode_xmx",
                               .names = {"dense_attn_decode_512", "dense_attn_decode_576", "dense_attn_decode_any"},
                               .matrix_names = {"dense_attn_decode_512_xmx", "dense_attn_decode_576_xmx"}};

AttnShape shape_of(const DenseAttnDecodeParams& p) {
  return {.tokens = p.q.shape[0],
          .heads = p.q.shape[1],
          .value_dim = p.out.shape[2],
          .rows = p.max_seq_len,
          .is_batch_invariant = p.batch_invariant};
}

Support supports_xmx(const DenseAttnDecodeParams& p, const Capabilities& c) {
  const Support support = supports_matrix(c, p.q);
  return support ? supports_matrix(p.cache) : support;
}

int64_t workspace_bytes(const DenseAttnDecodeParams& p, const Capabilities&) { return plan_attention(shape_of(p)).workspace_bytes; }

void run(const DenseAttnDecodeParams& p, Variant variant, const ExecutionContext& context) {
  const DenseAttnDecodeCall call{.attention = attention_of({.q = p.q, .out = p.out, .lse = p.lse, .scale = p.softmax_scale}),
                                 .cache = cache_view(p.cache),
                                 .block_table = address(p.block_table),
                                 .query_start = address(p.query_start_loc),
                                 .seq_lens = address(p.seq_lens),
                                 .table_stride = p.block_table.stride[0],
                                 .num_requests = static_cast<int32_t>(p.seq_lens.shape[0]),
                                 .is_causal = p.causal ? 1 : 0};
  const bool is_aligned_call = call.attention.is_q_aligned && is_aligned(p.cache);
  launch_attention(context, kernel_of(kKernels, variant, p.q.shape[2], is_aligned_call), call, shape_of(p));
}

}  // namespace

std::vector<Implementation<DenseAttnDecodeParams>> dense_attn_decode() {
  return with_matrix<DenseAttnDecodeParams>({.workspace_bytes = workspace_bytes, .run = run},
                                            {.supports = supports_xmx, .workspace_bytes = workspace_bytes, .run = run});
}

}  // namespace strata::opencl
