// dense_attn_decode on Hopper: what it takes, the cut into parts, the launches. Rows are 576 lanes of bf16, or as many e4m3 codes with one
// scale for the cache, which logits and results are multiplied by.
//
// Floor: a row is read once for 64 heads or more (1152 or 576 bytes), and costs 2 (576 + 512) flops a head. The kernel is that of
// sm90/sparse_prefill with rows from pages.
#include <algorithm>
#include <limits>
#include <string>

#include "backends/cuda/common/rows.cuh"
#include "backends/cuda/sm90/dense_decode/dense_decode.h"
#include "backends/cuda/sm90/dense_decode/launch.h"
#include "backends/cuda/sm90/dense_decode/merge_spans.cuh"
#include "backends/cuda/sm90/dense_decode/problem.cuh"
#include "backends/cuda/sm90/sparse_prefill/merge.cuh"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

using namespace dense_decode;

// Upper bounds from shapes: query tokens and (query, head) pairs of a request, tiles of its rows.
struct Extent {
  int64_t requests, queries, heads, pairs, row_tiles;
  explicit Extent(const DenseAttnDecodeParams& p)
      : requests(p.seq_lens.shape[0]),
        queries(std::min(p.max_query_len, p.q.shape[0])),
        heads(p.q.shape[1]),
        pairs(queries * heads),
        row_tiles(ceil_div(p.max_seq_len, kTileRows)) {}
};

// How a call is laid out where a block's share follows from the lengths.
struct Layout {
  static constexpr int64_t kMostGang = 4;  // tiles of pairs that read the same rows at a time
  int64_t gang, sequences_per_request, sequences, spans;
  Layout(const Extent& e, const Capabilities& c) {
    const int64_t tiles = ceil_div(e.pairs, kHeadTile);
    gang = std::clamp<int64_t>(tiles, 1, kMostGang);
    sequences_per_request = std::max<int64_t>(1, ceil_div(tiles, gang));
    sequences = e.requests * sequences_per_request;
    spans = std::clamp<int64_t>(std::min(c.num_sms / gang, sequences * e.row_tiles), 1, kMostSpans);
  }
  // Whether sequences of one length are two parts each, whose blocks can be a cluster.
  bool in_two_parts(const Extent& e) const { return e.row_tiles > 1 && spans >= 2 * sequences && spans < 3 * sequences; }
};

bool is_coded(const DenseAttnDecodeParams& p) { return p.cache.format == KvFormat::fp8_tensor; }

int64_t invariant_splits(const Extent& e) { return std::clamp<int64_t>(ceil_div(e.row_tiles, kInvariantTiles), 1, kInvariantSplits); }
int64_t invariant_items(const Extent& e) { return e.requests * e.queries * ceil_div(e.heads, kHeadTile) * invariant_splits(e); }

Support supports(const DenseAttnDecodeParams& p, const Capabilities& c) {
  if (Support sm90 = needs_sm90(c); !sm90) return sm90;
  if (p.cache.format != KvFormat::bf16 && !is_coded(p)) {
    return Support::no("needs a cache of bf16 or fp8_tensor, has " + std::string(to_string(p.cache.format)));
  }
  if (p.q.shape[2] != kRowDim || p.out.shape[2] != kValueDim) {
    return Support::no("needs rows of 576 lanes and 512 value lanes, has " + std::to_string(p.q.shape[2]) + " and " +
                       std::to_string(p.out.shape[2]));
  }
  if (p.cache.page_stride % 16 != 0) return Support::no("needs a page_stride that is a multiple of 16 bytes");
  if (p.cache.num_pages * (p.cache.page_stride / 16) > std::numeric_limits<uint32_t>::max())
    return Support::no("needs a cache below 64 GiB");
  const Extent e(p);
  // Places on the line, pairs of a request and items are counted in 31 bits.
  const Layout l(e, c);
  const int64_t line = l.sequences * (e.row_tiles + kPieceCost) + c.num_sms;
  if (l.sequences > kMostSequences || std::max({line, e.pairs, invariant_items(e)}) > std::numeric_limits<int32_t>::max() / 2)
    return Support::no("too many queries or rows");
  return Support::yes();
}

// Parts of pairs: does not shrink when the call grows, although it is cut less.
int64_t most_parts(const DenseAttnDecodeParams& p, const Capabilities& c) {
  const Extent e(p);
  if (p.batch_invariant) return invariant_splits(e) > 1 ? p.q.shape[0] * e.heads * invariant_splits(e) : 0;
  const Layout l(e, c);
  if (e.row_tiles <= 1) return 0;
  return 2 * std::min<int64_t>(c.num_sms, l.sequences * l.gang * e.row_tiles) * std::min<int64_t>(e.pairs, kHeadTile);
}
size_t workspace_bytes(const DenseAttnDecodeParams& p, const Capabilities& c) {
  constexpr size_t kPartBytes = kValueDim * sizeof(uint16_t) + sizeof(float2) + sizeof(float);
  return (p.batch_invariant ? 0 : kMostSpans * sizeof(Parted)) + static_cast<size_t>(most_parts(p, c)) * kPartBytes;
}

// All but what the items are; `parts` of pairs in memory.
DenseArgs args_of(const DenseAttnDecodeParams& p, void* memory, int64_t parts) {
  DenseArgs a{};
  a.max_queries = static_cast<int32_t>(Extent(p).queries);
  a.num_heads = static_cast<int32_t>(p.q.shape[1]);
  a.num_tokens = static_cast<int32_t>(p.q.shape[0]);
  // Never behind a request's table, whatever its length says before the kernel in front has written it.
  a.max_rows = static_cast<int32_t>(std::min(p.max_seq_len, p.block_table.shape[1] * p.cache.page_size));
  a.q = p.q.ptr<uint16_t>();
  a.q_token_stride = p.q.stride[0], a.q_head_stride = p.q.stride[1];
  a.cache = static_cast<const uint8_t*>(p.cache.data);
  a.value_scale = is_coded(p) ? p.cache.scale : 1.0f;
  a.page_units = static_cast<uint32_t>(p.cache.page_stride / 16);
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
  a.part_out = static_cast<uint16_t*>(memory);
  a.part_factors = reinterpret_cast<float2*>(a.part_out + parts * kValueDim);
  a.part_lse = reinterpret_cast<float*>(a.part_factors + parts);
  a.rows_aligned = rows_aligned(p.q) && reinterpret_cast<uintptr_t>(p.cache.data) % 16 == 0;
  a.out_aligned = rows_aligned(p.out);
  return a;
}

void run_invariant(const DenseAttnDecodeParams& p, const ExecutionContext& context) {
  const Extent e(p);
  InvariantArgs a{};
  static_cast<DenseArgs&>(a) = args_of(p, context.workspace.data, most_parts(p, capabilities(context.device)));
  a.head_tiles = static_cast<int32_t>(ceil_div(e.heads, kHeadTile));
  a.num_splits = static_cast<int32_t>(invariant_splits(e));
  a.num_items = static_cast<int32_t>(invariant_items(e));
  const int blocks = std::min(a.num_items, capabilities(context.device).num_sms / 2 * 2);
  is_coded(p) ? launch_invariant<true>(a, blocks, context) : launch_invariant<false>(a, blocks, context);
  if (a.num_splits > 1) sparse_prefill::launch_merge(a, /*fixed_order=*/true, context);
}

void run_spans(const DenseAttnDecodeParams& p, const ExecutionContext& context) {
  const Capabilities& c = capabilities(context.device);
  const Extent e(p);
  const Layout l(e, c);
  auto* const parted = static_cast<Parted*>(context.workspace.data);
  SpanArgs a{};
  static_cast<DenseArgs&>(a) = args_of(p, parted + kMostSpans, most_parts(p, c));
  a.parted = parted;
  const bool merges = l.in_two_parts(e);
  a.gang = static_cast<int32_t>(l.gang);
  a.num_sequences = static_cast<int32_t>(l.sequences);
  a.num_spans = static_cast<int32_t>(merges ? l.spans / 2 * 2 : l.spans);
  a.part_rows = static_cast<int32_t>(std::min<int64_t>(e.pairs, l.gang * kHeadTile));
  a.sequences_per_request = Divisor(static_cast<int32_t>(l.sequences_per_request));
  a.heads = Divisor(a.num_heads);
  const int blocks = a.num_spans * a.gang;
  if (merges) {
    is_coded(p) ? launch_spans<true, true>(a, blocks, context) : launch_spans<false, true>(a, blocks, context);
  } else {
    is_coded(p) ? launch_spans<true, false>(a, blocks, context) : launch_spans<false, false>(a, blocks, context);
  }
  if (e.row_tiles > 1) launch_merge_spans(a, c.num_sms, context);
}

void run(const DenseAttnDecodeParams& p, const ExecutionContext& context) {
  if (p.q.shape[0] == 0 || p.seq_lens.shape[0] == 0) return;
  p.batch_invariant ? run_invariant(p, context) : run_spans(p, context);
}

}  // namespace

Implementation<DenseAttnDecodeParams> dense_attn_decode_sm90() {
  return implementation<DenseAttnDecodeParams>("cuda/sm90", {.supports = supports, .workspace_bytes = workspace_bytes, .run = run});
}

}  // namespace strata::cuda
