// sparse_attn_prefill on Hopper: what it takes, the launch.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>

#include "backends/cuda/sm90/linear/tensor_map.h"
#include "backends/cuda/sm90/sparse_prefill/launch.h"
#include "backends/cuda/sm90/sparse_prefill/sparse_prefill.h"

namespace strata::cuda {
namespace {

using namespace sparse_prefill;

Support supports(const SparseAttnPrefillParams& p, const Capabilities& c) {
  if (Support sm90 = needs_sm90(c); !sm90) return sm90;
  if (p.out.shape[2] != kValueDim) return Support::no("needs 512 value lanes, has " + std::to_string(p.out.shape[2]));
  return Support::yes();
}

// Rows of bf16 that start at multiples of 16 bytes.
bool aligned(const TensorView& v, std::initializer_list<int64_t> strides) {
  return reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s % 8 == 0; });
}

PrefillArgs args_of(const SparseAttnPrefillParams& p) {
  PrefillArgs a{};
  a.num_heads = static_cast<int32_t>(p.q.shape[1]);
  a.items_per_token_log2 = a.num_heads > kHeadTile ? 1 : 0;
  a.num_items = static_cast<int32_t>(p.q.shape[0] << a.items_per_token_log2);
  a.q = p.q.ptr<uint16_t>();
  a.q_token_stride = p.q.stride[0], a.q_head_stride = p.q.stride[1];
  a.kv = p.kv.ptr<uint16_t>();
  a.kv_stride = p.kv.stride[0];
  a.num_rows = static_cast<uint32_t>(std::min<int64_t>(p.kv.shape[0], std::numeric_limits<int32_t>::max()));
  a.indices = p.indices.ptr<int32_t>();
  a.indices_stride = p.indices.stride[0];
  a.lengths = p.topk_length.ptr<int32_t>();
  a.width = static_cast<int32_t>(p.indices.shape[1]);
  a.sink = p.attn_sink.ptr<float>();
  a.scale_log2 = p.softmax_scale * kLog2e;
  a.out = p.out.ptr<uint16_t>();
  a.out_token_stride = p.out.stride[0], a.out_head_stride = p.out.stride[1];
  a.lse = p.lse.ptr<float>();
  a.lse_token_stride = p.lse.stride[0], a.lse_head_stride = p.lse.stride[1];
  a.max_logits = p.max_logits.ptr<float>();
  a.max_token_stride = p.max_logits.stride[0], a.max_head_stride = p.max_logits.stride[1];
  a.rows_aligned = aligned(p.q, {a.q_token_stride, a.q_head_stride}) && aligned(p.kv, {a.kv_stride});
  a.out_aligned = aligned(p.out, {a.out_token_stride, a.out_head_stride}) && a.out_token_stride > 0 && a.out_head_stride > 0;
  return a;
}

void run(const SparseAttnPrefillParams& p, const ExecutionContext& context) {
  PrefillArgs a = args_of(p);
  if (a.num_items == 0) return;
  if (a.out_aligned) {
    a.out_map = sm90::tensor_map("sparse_attn_prefill: out", p.out.data, p.out.shape[0], p.out.shape[1], kValueDim, a.out_token_stride,
                                 a.out_head_stride, kStoredHeads);
  }
  const bool d512 = p.q.shape[2] == 512;
  // Both items of a token by one block.
  const bool together = d512 && a.items_per_token_log2 == 1 && a.width <= kSharedTiles * Shape<512>::kRows;
  const int blocks = std::min(together ? a.num_items / 2 : a.num_items, capabilities(context.device).num_sms);
  const auto launch = together ? launch_prefill<512, true> : d512 ? launch_prefill<512, false> : launch_prefill<576, false>;
  launch(a, blocks, native(context.stream));
}

}  // namespace

Implementation<SparseAttnPrefillParams> sparse_attn_prefill_sm90() {
  return implementation<SparseAttnPrefillParams>("cuda/sm90", {.supports = supports, .run = run});
}

}  // namespace strata::cuda
