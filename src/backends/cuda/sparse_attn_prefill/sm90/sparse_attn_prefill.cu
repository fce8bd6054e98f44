// sparse_attn_prefill on Hopper: supported calls and arguments.
#include <algorithm>
#include <limits>
#include <string>

#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/mqa_engine/call.cuh"
#include "backends/cuda/sparse_attn_prefill/impls.h"
#include "backends/cuda/sparse_attn_prefill/sm90/gathered_rows.cuh"

namespace strata::cuda {
namespace {

using namespace sparse_prefill;

Support supports(const SparseAttnPrefillParams& p, const Capabilities& c) {
  if (Support sm90 = needs_sm90(c); !sm90) return sm90;
  if (p.out.shape[2] != kValueDim) return Support::no("needs 512 value dimensions, has " + std::to_string(p.out.shape[2]));
  return Support::yes();
}

TokenArgs<GatheredRows> args_of(const SparseAttnPrefillParams& p) {
  TokenArgs<GatheredRows> a{};
  a.kv = p.kv.ptr<uint16_t>();
  a.kv_stride = p.kv.stride[0];
  a.num_rows = static_cast<uint32_t>(std::min<int64_t>(p.kv.shape[0], std::numeric_limits<int32_t>::max()));
  a.indices = p.indices.ptr<int32_t>();
  a.indices_stride = p.indices.stride[0];
  a.lengths = p.topk_length.ptr<int32_t>();
  a.width = static_cast<int32_t>(p.indices.shape[1]);
  a.q = p.q.ptr<uint16_t>();
  a.q_token_stride = p.q.stride[0], a.q_head_stride = p.q.stride[1];
  a.sink = p.attn_sink.ptr<float>();
  a.scale_log2 = p.softmax_scale * kLog2e;
  a.out = p.out.ptr<uint16_t>();
  a.out_token_stride = p.out.stride[0], a.out_head_stride = p.out.stride[1];
  a.lse = p.lse.ptr<float>();
  a.lse_stride = p.lse.stride[0], a.lse_head_stride = p.lse.stride[1];
  a.max_logits = p.max_logits.ptr<float>();
  a.max_stride = p.max_logits.stride[0], a.max_head_stride = p.max_logits.stride[1];
  a.rows_aligned = rows_aligned(p.q) && rows_aligned(p.kv);
  a.out_aligned = begins_aligned(p.out.data) && strides_aligned(p.out);
  return a;
}

Extent extent_of(const SparseAttnPrefillParams& p, const Capabilities& c) {
  return {p.q.shape[0], p.q.shape[1], p.q.shape[2], p.indices.shape[1], GatheredRows::kTileRows, p.kv.shape[0] * p.q.shape[2] * 2, c};
}

size_t workspace_bytes(const SparseAttnPrefillParams& p, const Capabilities& c) {
  return sparse_prefill::workspace_bytes(extent_of(p, c), p.batch_invariant);
}

void run(const SparseAttnPrefillParams& p, const ExecutionContext& context) {
  const Extent e = extent_of(p, capabilities(context.device));
  e.d512 ? run_call<512>(args_of(p), e, p.batch_invariant, context) : run_call<576>(args_of(p), e, p.batch_invariant, context);
}

}  // namespace

Implementation<SparseAttnPrefillParams> sparse_attn_prefill_sm90() {
  return implementation<SparseAttnPrefillParams>("cuda/sm90", {.supports = supports, .workspace_bytes = workspace_bytes, .run = run});
}

}  // namespace strata::cuda
