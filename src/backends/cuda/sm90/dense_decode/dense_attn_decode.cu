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
#include "backends/cuda/sm90/dense_decode/problem.cuh"
#include "backends/cuda/sm90/dense_decode/split.h"
#include "backends/cuda/sm90/sparse_prefill/cluster_merge.cuh"
#include "backends/cuda/sm90/sparse_prefill/merge.cuh"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

using namespace dense_decode;
using sparse_prefill::kHeadTile, sparse_prefill::kValueDim;

// Upper bounds from shapes: query tokens, tiles of rows of one, tiles of heads.
struct Extent {
  int64_t requests, queries, head_tiles, row_tiles;
  explicit Extent(const DenseAttnDecodeParams& p)
      : requests(p.seq_lens.shape[0]),
        queries(std::min(p.max_query_len, p.q.shape[0])),
        head_tiles(ceil_div(p.q.shape[1], kHeadTile)),
        row_tiles(ceil_div(p.max_seq_len, kTileRows)) {}
  int64_t slots(const Capabilities& c) const { return std::max<int64_t>(1, c.num_sms / head_tiles); }
};

int64_t splits_of(const DenseAttnDecodeParams& p, const Capabilities& c) {
  const Extent e(p);
  if (p.batch_invariant) return std::clamp<int64_t>(ceil_div(e.row_tiles, kInvariantTiles), 1, kInvariantSplits);
  return e.row_tiles > 1 ? choose_splits(e.requests * e.queries, e.row_tiles, e.slots(c), {.fixed = 128, .of_split = 0}) : 1;
}

bool is_coded(const DenseAttnDecodeParams& p) { return p.cache.format == KvFormat::fp8_tensor; }

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
  if (e.requests * e.queries * e.head_tiles * splits_of(p, c) > std::numeric_limits<int32_t>::max()) return Support::no("too many queries");
  return Support::yes();
}

// Parts of tokens: does not shrink when the call grows, although it is cut less.
int64_t most_parts(const DenseAttnDecodeParams& p, const Capabilities& c) {
  const Extent e(p);
  if (p.batch_invariant) return splits_of(p, c) > 1 ? p.q.shape[0] * splits_of(p, c) : 0;
  return e.row_tiles > 1 ? dense_decode::most_parts(e.requests * e.queries, e.row_tiles, e.slots(c)) : 0;
}
size_t workspace_bytes(const DenseAttnDecodeParams& p, const Capabilities& c) {
  return static_cast<size_t>(most_parts(p, c) * p.q.shape[1]) * (kValueDim * sizeof(uint16_t) + sizeof(float2) + sizeof(float));
}

DenseArgs args_of(const DenseAttnDecodeParams& p, const ExecutionContext& context) {
  const Capabilities& c = capabilities(context.device);
  const Extent e(p);
  DenseArgs a{};
  const int64_t splits = splits_of(p, c);
  a.head_tiles = static_cast<int32_t>(e.head_tiles);
  a.max_queries = static_cast<int32_t>(e.queries);
  a.num_splits = static_cast<int32_t>(splits);
  a.tiles_per_split = p.batch_invariant ? 0 : static_cast<int32_t>(std::max<int64_t>(1, ceil_div(e.row_tiles, splits)));
  a.num_items = static_cast<int32_t>(e.requests * e.queries * e.head_tiles * splits);
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
  const int64_t parts = splits * a.num_tokens * a.num_heads;
  a.part_out = static_cast<uint16_t*>(context.workspace.data);
  a.part_factors = reinterpret_cast<float2*>(a.part_out + parts * kValueDim);
  a.part_lse = reinterpret_cast<float*>(a.part_factors + parts);
  a.rows_aligned = rows_aligned(p.q) && reinterpret_cast<uintptr_t>(p.cache.data) % 16 == 0;
  a.out_aligned = rows_aligned(p.out);
  return a;
}

void run(const DenseAttnDecodeParams& p, const ExecutionContext& context) {
  if (p.q.shape[0] == 0 || p.seq_lens.shape[0] == 0) return;
  const DenseArgs a = args_of(p, context);
  const int num_blocks = capabilities(context.device).num_sms / 2 * 2;
  if (a.num_splits == sparse_prefill::kClusterParts && a.num_items <= num_blocks && !p.batch_invariant) {
    return is_coded(p) ? launch<true, true>(a, a.num_items, context) : launch<false, true>(a, a.num_items, context);
  }
  const int blocks = std::min(a.num_items, num_blocks);
  is_coded(p) ? launch<true, false>(a, blocks, context) : launch<false, false>(a, blocks, context);
  if (a.num_splits > 1) sparse_prefill::launch_merge(a, p.batch_invariant, context);
}

}  // namespace

Implementation<DenseAttnDecodeParams> dense_attn_decode_sm90() {
  return implementation<DenseAttnDecodeParams>("cuda/sm90", {.supports = supports, .workspace_bytes = workspace_bytes, .run = run});
}

}  // namespace strata::cuda
