// dense_attn_decode on Hopper: supported calls, KV splits, launches. Rows are 576 bf16 values, or 576 e4m3 values with one scale for the
// cache, which is a factor of logits and results.
//
// Floor: a row is read once for 64 heads or more (1152 or 576 bytes), and costs 2 (576 + 512) flops a head. The kernel is mqa_engine with
// rows from pages.
#include <algorithm>
#include <limits>
#include <string>

#include "backends/cuda/dense_attn_decode/impls.h"
#include "backends/cuda/dense_attn_decode/sm90/launch.h"
#include "backends/cuda/dense_attn_decode/sm90/combine_work_ranges.cuh"
#include "backends/cuda/dense_attn_decode/sm90/problem.cuh"
#include "backends/cuda/dense_attn_decode/sm90/schedule.h"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/mqa_engine/combine.cuh"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

using namespace dense_decode;

Extent extent_of(const DenseAttnDecodeParams& p) {
  return {p.seq_lens.shape[0], std::min(p.max_query_len, p.q.shape[0]), p.q.shape[1], p.max_seq_len};
}

// Work ranges of the call's schedule: no more than the kernel would use without one, so that the workspace suffices. 0: the call has no
// schedule of these kernels.
int64_t scheduled_work_ranges(const DenseAttnDecodeParams& p, const Layout& layout) {
  if (!p.schedule.present() || p.schedule.numel() % int64_t{sizeof(WorkRangeRow)} != 0) return 0;
  const int64_t work_ranges = p.schedule.numel() / int64_t{sizeof(WorkRangeRow)};
  return layout.sequences_per_request == 1 && work_ranges <= layout.work_ranges ? work_ranges : 0;
}

// How rows are divided: by a schedule, or by the CTAs from the lengths. In a schedule a request is one sequence.
struct Sharing {
  Extent extent;
  Layout layout;
  bool scheduled = false;
  Sharing(const DenseAttnDecodeParams& p, const Capabilities& c) : extent(extent_of(p)), layout(extent, c.num_sms) {
    const int64_t work_ranges = scheduled_work_ranges(p, layout);
    if (work_ranges > 0) scheduled = true, layout.work_ranges = work_ranges;
  }
  // Neighbouring work ranges are clusters, which combine their own splits.
  bool in_clusters() const { return layout.in_two_splits(extent) && layout.work_ranges % 2 == 0; }
};

// (query, head) pairs of one split of a sequence.
int64_t split_pairs(const Sharing& by) { return std::min<int64_t>(by.extent.pairs, by.layout.gang * kHeadTile); }

bool is_quantized(const DenseAttnDecodeParams& p) { return p.cache.format == KvFormat::fp8_tensor; }

int64_t invariant_splits(const Extent& e) { return std::clamp<int64_t>(ceil_div(e.row_tiles, kInvariantTiles), 1, kInvariantSplits); }
int64_t invariant_items(const Extent& e) { return e.requests * e.queries * ceil_div(e.heads, kHeadTile) * invariant_splits(e); }

Support supports(const DenseAttnDecodeParams& p, const Capabilities& c) {
  if (Support sm90 = needs_sm90(c); !sm90) return sm90;
  if (p.cache.format != KvFormat::bf16 && !is_quantized(p)) {
    return Support::no("needs a cache of bf16 or fp8_tensor, has " + std::string(to_string(p.cache.format)));
  }
  if (p.q.shape[2] != kRowDim || p.out.shape[2] != kValueDim) {
    return Support::no("needs rows of 576 dimensions and 512 value dimensions, has " + std::to_string(p.q.shape[2]) + " and " +
                       std::to_string(p.out.shape[2]));
  }
  if (p.cache.page_stride % 16 != 0) return Support::no("needs a page_stride that is a multiple of 16 bytes");
  if (p.cache.num_pages * (p.cache.page_stride / 16) > std::numeric_limits<uint32_t>::max())
    return Support::no("needs a cache below 64 GiB");
  const Extent e = extent_of(p);
  // Pairs of a request and items must fit in 31 bits.
  if (!Layout(e, c.num_sms).fits(e) || std::max(e.pairs, invariant_items(e)) > std::numeric_limits<int32_t>::max() / 2)
    return Support::no("too many queries or rows");
  return Support::yes();
}

// Number of splits of pairs. Does not shrink when the call grows, although longer calls are split less.
int64_t max_splits(const DenseAttnDecodeParams& p, const Capabilities& c) {
  const Extent e = extent_of(p);
  if (p.batch_invariant) return invariant_splits(e) > 1 ? p.q.shape[0] * e.heads * invariant_splits(e) : 0;
  if (e.row_tiles <= 1) return 0;
  const Sharing by(p, c);
  const Layout& l = by.layout;
  return 2 * std::max(by.scheduled ? l.work_ranges * split_pairs(by) : 0,
                      std::min<int64_t>(c.num_sms, l.sequences * l.gang * e.row_tiles) * std::min<int64_t>(e.pairs, kHeadTile));
}
size_t workspace_bytes(const DenseAttnDecodeParams& p, const Capabilities& c) {
  constexpr size_t kSplitBytes = kValueDim * sizeof(uint16_t) + sizeof(float2) + sizeof(float);
  return (p.batch_invariant ? 0 : kMaxWorkRanges * sizeof(SplitSequence)) + static_cast<size_t>(max_splits(p, c)) * kSplitBytes;
}

// All arguments except the items; `splits` splits of pairs in memory.
DenseArgs args_of(const DenseAttnDecodeParams& p, void* memory, int64_t splits) {
  DenseArgs a{};
  a.max_queries = static_cast<int32_t>(extent_of(p).queries);
  a.num_heads = static_cast<int32_t>(p.q.shape[1]);
  a.num_tokens = static_cast<int32_t>(p.q.shape[0]);
  // Never past a request's table, whatever its length reads as before the preceding kernel has written it.
  a.max_rows = static_cast<int32_t>(std::min(p.max_seq_len, p.block_table.shape[1] * p.cache.page_size));
  a.q = p.q.ptr<uint16_t>();
  a.q_token_stride = p.q.stride[0], a.q_head_stride = p.q.stride[1];
  a.cache = static_cast<const uint8_t*>(p.cache.data);
  a.value_scale = is_quantized(p) ? p.cache.scale : 1.0f;
  a.causal = p.causal;
  a.page_units = static_cast<uint32_t>(p.cache.page_stride / 16);
  a.row_units = static_cast<uint32_t>(row_data_bytes(p.cache.format, p.cache.row_dim) / 16);
  a.page_size = Divisor(p.cache.page_size);
  a.num_pages = static_cast<uint32_t>(std::min<int64_t>(p.cache.num_pages, std::numeric_limits<int32_t>::max()));
  a.block_table = p.block_table.ptr<int32_t>();
  a.table_stride = p.block_table.stride[0];
  a.query_start_loc = p.query_start_loc.ptr<int32_t>();
  a.seq_lens = p.seq_lens.ptr<int32_t>();
  a.scale_log2 = a.value_scale * p.softmax_scale * kLog2e;
  a.out = p.out.ptr<uint16_t>();
  a.out_token_stride = p.out.stride[0], a.out_head_stride = p.out.stride[1];
  a.lse = p.lse.ptr<float>();
  a.lse_token_stride = p.lse.stride[0], a.lse_head_stride = p.lse.stride[1];
  a.split_out = static_cast<uint16_t*>(memory);
  a.split_factors = reinterpret_cast<float2*>(a.split_out + splits * kValueDim);
  a.split_lse = reinterpret_cast<float*>(a.split_factors + splits);
  a.rows_aligned = rows_aligned(p.q) && reinterpret_cast<uintptr_t>(p.cache.data) % 16 == 0;
  a.out_aligned = rows_aligned(p.out);
  return a;
}

void run_invariant(const DenseAttnDecodeParams& p, const ExecutionContext& context) {
  const Extent e = extent_of(p);
  InvariantArgs a{};
  static_cast<DenseArgs&>(a) = args_of(p, context.workspace.data, max_splits(p, capabilities(context.device)));
  a.head_tiles = static_cast<int32_t>(ceil_div(e.heads, kHeadTile));
  a.num_splits = static_cast<int32_t>(invariant_splits(e));
  a.num_items = static_cast<int32_t>(invariant_items(e));
  const int blocks = std::min(a.num_items, capabilities(context.device).num_sms / 2 * 2);
  is_quantized(p) ? launch_invariant<true>(a, blocks, context) : launch_invariant<false>(a, blocks, context);
  static_assert(kInvariantSplits <= kWarpSize, "the merge has a lane for each");
  if (a.num_splits > 1) sparse_prefill::launch_combine(a, /*fixed_order=*/true, context);
}

template <Shares kShares>
void run_work_ranges(const DenseAttnDecodeParams& p, const Sharing& by, const ExecutionContext& context) {
  const Capabilities& c = capabilities(context.device);
  const Layout& l = by.layout;
  auto* const split_sequences = static_cast<SplitSequence*>(context.workspace.data);
  WorkRangeArgs a{};
  static_cast<DenseArgs&>(a) = args_of(p, split_sequences + kMaxWorkRanges, max_splits(p, c));
  a.split_sequences = split_sequences;
  a.in_clusters = by.in_clusters();
  a.schedule = kShares == Shares::by_schedule ? p.schedule.ptr<int32_t>() : nullptr;
  a.gang = static_cast<int32_t>(l.gang);
  a.num_sequences = static_cast<int32_t>(l.sequences);
  a.num_work_ranges = static_cast<int32_t>(l.work_ranges);
  a.split_pairs = static_cast<int32_t>(split_pairs(by));
  a.sequences_per_request = Divisor(static_cast<int32_t>(l.sequences_per_request));
  a.heads = Divisor(a.num_heads);
  if (a.in_clusters) {
    is_quantized(p) ? launch_work_ranges<true, true, kShares>(a, context) : launch_work_ranges<false, true, kShares>(a, context);
  } else {
    is_quantized(p) ? launch_work_ranges<true, false, kShares>(a, context) : launch_work_ranges<false, false, kShares>(a, context);
  }
  if (by.extent.row_tiles > 1) launch_combine_work_ranges(a, c.num_sms, context);
}

void run(const DenseAttnDecodeParams& p, const ExecutionContext& context) {
  if (p.q.shape[0] == 0 || p.seq_lens.shape[0] == 0) return;
  if (p.batch_invariant) return run_invariant(p, context);
  const Sharing by(p, capabilities(context.device));
  by.scheduled ? run_work_ranges<Shares::by_schedule>(p, by, context) : run_work_ranges<Shares::by_lengths>(p, by, context);
}

}  // namespace

Implementation<DenseAttnDecodeParams> dense_attn_decode_sm90() {
  return implementation<DenseAttnDecodeParams>("cuda/sm90", {.supports = supports, .workspace_bytes = workspace_bytes, .run = run});
}

}  // namespace strata::cuda
