// sparse_attn_prefill on Hopper: what it takes, the launch.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>

#include "backends/cuda/sm90/linear/tensor_map.h"
#include "backends/cuda/sm90/sparse_prefill/launch.h"
#include "backends/cuda/sm90/sparse_prefill/merge.cuh"
#include "backends/cuda/sm90/sparse_prefill/plan.h"
#include "backends/cuda/sm90/sparse_prefill/sparse_prefill.h"
#include "core/ceil_div.h"

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

void set_args(PrefillArgs& a, const SparseAttnPrefillParams& p) {
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
}

SparseAttnPrefillParams tokens_of(SparseAttnPrefillParams p, int64_t first, int64_t count) {
  for (TensorView* view : {&p.q, &p.indices, &p.topk_length, &p.out, &p.lse, &p.max_logits}) {
    if (view->present()) *view = view->slice(first, count);
  }
  return p;
}

// Fewer bytes of rows stay in L2 by themselves. An H200 has 50 MB of it, in halves that both come to hold the rows.
constexpr int64_t kLeastKept = 8 << 20, kMostKept = 16 << 20;

// What a call needs to know of its shapes.
struct Extent {
  int64_t head_tiles, row_tiles, row_bytes, sms;
  bool d512;
  Extent(const SparseAttnPrefillParams& p, const Capabilities& c)
      : head_tiles(ceil_div(p.q.shape[1], kHeadTile)),
        row_tiles(ceil_div(p.indices.shape[1], Shape<512>::kRows)),
        row_bytes(p.kv.shape[0] * p.q.shape[2] * 2),
        sms(c.num_sms),
        d512(p.q.shape[2] == 512) {}
  int64_t slots() const { return std::max<int64_t>(1, sms / head_tiles); }
  // Both items of a token by one block: not where each can have a block for itself.
  bool together(int64_t tokens) const { return d512 && head_tiles == 2 && row_tiles <= kSharedTiles && tokens > slots(); }
  // Whether rows are worth keeping in L2 while queries and outputs stream through it: of longer tokens, few or many bytes they are not.
  bool keeps_rows() const { return d512 && row_tiles <= kSharedTiles && row_bytes >= kLeastKept && row_bytes <= kMostKept; }
};

// In front of parts, which are aligned to as much: the next turn to be dealt.
constexpr size_t kDealBytes = 16;

size_t workspace_bytes(const SparseAttnPrefillParams& p, const Capabilities& c) {
  const Extent e(p, c);
  const int64_t parts = p.batch_invariant ? 0 : most_parts(p.q.shape[0], e.row_tiles, e.slots());
  return kDealBytes + static_cast<size_t>(parts * p.q.shape[1] * kPartBytes);
}

PartArgs part_args(const SparseAttnPrefillParams& p, const Plan& plan, const ExecutionContext& context) {
  PartArgs a{};
  set_args(a, p);
  a.num_tokens = static_cast<int32_t>(p.q.shape[0]);
  a.num_splits = static_cast<int32_t>(plan.splits);
  a.tiles_per_split = static_cast<int32_t>(plan.tiles_per_split);
  a.num_items *= a.num_splits;
  const int64_t parts = plan.splits * a.num_tokens * a.num_heads;
  a.part_out = reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(context.workspace.data) + kDealBytes);
  a.part_factors = reinterpret_cast<float2*>(a.part_out + parts * kValueDim);
  a.part_lse = reinterpret_cast<float*>(a.part_factors + parts);
  a.part_max = a.part_lse + parts;
  return a;
}

void run_whole(const SparseAttnPrefillParams& p, const Extent& e, const PartArgs& parts, const ExecutionContext& context) {
  WholeArgs a{};
  set_args(a, p);
  a.parts = parts;
  if (a.out_aligned) {
    a.out_map = sm90::column_groups_map("sparse_attn_prefill: out", p.out.data, p.out.shape[0], p.out.shape[1], kValueDim,
                                        a.out_token_stride, a.out_head_stride, kStoredHeads, kStoredChunks);
  }
  const bool together = e.together(p.q.shape[0]);
  const int64_t turns = together ? p.q.shape[0] : a.num_items, blocks = std::min(turns, e.sms);
  const bool deals = turns > kRoundsInOrder * blocks;
  a.turns_in_order = deals ? static_cast<int32_t>(kRoundsInOrder * blocks) : std::numeric_limits<int32_t>::max();
  a.next_turn = deals ? static_cast<uint32_t*>(context.workspace.data) : nullptr;
  if (deals && a.rows_aligned && e.keeps_rows()) a.keeping_items = static_cast<int32_t>(kRoundsInOrder * blocks) << (together ? 1 : 0);
  const auto launch = together ? launch_prefill<512, true> : e.d512 ? launch_prefill<512, false> : launch_prefill<576, false>;
  launch(a, static_cast<int>(blocks), context);
}

void run(const SparseAttnPrefillParams& p, const ExecutionContext& context) {
  const int64_t tokens = p.q.shape[0];
  const Extent e(p, capabilities(context.device));
  const Plan of_call = p.batch_invariant ? Plan{tokens, 0, 1, e.row_tiles} : plan(tokens, e.row_tiles, e.slots());
  PartArgs parts{};
  if (of_call.cut > 0) parts = part_args(tokens_of(p, of_call.whole, of_call.cut), of_call, context);
  if (of_call.whole > 0) {
    run_whole(tokens_of(p, 0, of_call.whole), e, parts, context);
  } else if (of_call.cut > 0) {
    const auto launch = e.d512 ? launch_parts<512> : launch_parts<576>;
    launch(parts, static_cast<int>(std::min<int64_t>(parts.num_items, e.sms)), context);
  }
  if (of_call.cut > 0) launch_merge(parts, /*fixed_order=*/false, context);
}

}  // namespace

Implementation<SparseAttnPrefillParams> sparse_attn_prefill_sm90() {
  return implementation<SparseAttnPrefillParams>("cuda/sm90", {.supports = supports, .workspace_bytes = workspace_bytes, .run = run});
}

}  // namespace strata::cuda
