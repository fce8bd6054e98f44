// A call of sparse attention over rows that are multiplied as bf16: its division into whole tokens and splits, its workspace, the launches.
#pragma once

#include <algorithm>
#include <limits>

#include "backends/cuda/mqa_engine/launch.h"
#include "backends/cuda/mqa_engine/combine.cuh"
#include "backends/cuda/mqa_engine/plan.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "core/ceil_div.h"

namespace strata::cuda::sparse_prefill {

// The shapes of a call.
struct Extent {
  int64_t tokens, heads;
  int64_t head_tiles, row_tiles;
  int64_t matrix_bytes;  // of gathered rows; 0: paged rows
  int64_t sms;
  bool d512;
  Extent(int64_t num_tokens, int64_t num_heads, int64_t dim, int64_t rows_of_token, int64_t rows_of_tile, int64_t bytes,
         const Capabilities& c)
      : tokens(num_tokens),
        heads(num_heads),
        head_tiles(ceil_div(num_heads, kHeadTile)),
        row_tiles(ceil_div(rows_of_token, rows_of_tile)),
        matrix_bytes(bytes),
        sms(c.num_sms),
        d512(dim == 512) {}
  int64_t slots() const { return std::max<int64_t>(1, sms / head_tiles); }
  // Both items of a token in one CTA: not where each can have its own CTA.
  bool two_head_tiles(int64_t whole_tokens) const {
    return matrix_bytes > 0 && d512 && head_tiles == 2 && row_tiles <= kSharedTiles && whole_tokens > slots();
  }
  // Whether the rows should be kept in L2 while queries and outputs stream through it. Not for longer tokens, or for few or many bytes;
  // fewer bytes stay there anyway. An H200 has 50 MB of L2, in halves that both come to hold the rows.
  bool keeps_rows() const {
    constexpr int64_t kMinKept = 8 << 20, kMaxKept = 16 << 20;
    return d512 && row_tiles <= kSharedTiles && matrix_bytes >= kMinKept && matrix_bytes <= kMaxKept;
  }
};

// Before the splits, with their alignment: the next iteration to be assigned dynamically.
inline constexpr size_t kWorkCounterBytes = 16;

inline size_t workspace_bytes(const Extent& e, bool batch_invariant) {
  const int64_t splits = batch_invariant ? 0 : max_splits(e.tokens, e.row_tiles, e.slots());
  return kWorkCounterBytes + static_cast<size_t>(splits * e.heads * kSplitBytes);
}

// Arguments of the `count` tokens after the first `first`.
template <class Source>
TokenArgs<Source> tokens_of(TokenArgs<Source> a, const Extent& e, int64_t first, int64_t count) {
  a.skip(first);
  a.q += first * a.q_token_stride, a.out += first * a.out_token_stride;
  a.lse = Source::skip(a.lse, a.lse_stride, first), a.max_logits = Source::skip(a.max_logits, a.max_stride, first);
  a.num_heads = static_cast<int32_t>(e.heads);
  a.items_per_token_log2 = e.head_tiles > 1 ? 1 : 0;
  a.num_items = static_cast<int32_t>(count << a.items_per_token_log2);
  return a;
}

template <class Source>
SplitArgs<Source> split_args(const TokenArgs<Source>& tokens, const Plan& plan, const ExecutionContext& context) {
  SplitArgs<Source> a{};
  static_cast<TokenArgs<Source>&>(a) = tokens;
  a.num_tokens = static_cast<int32_t>(plan.cut);
  a.num_splits = static_cast<int32_t>(plan.splits);
  a.tiles_per_split = static_cast<int32_t>(plan.tiles_per_split);
  a.num_items *= a.num_splits;
  const int64_t splits = plan.splits * a.num_tokens * a.num_heads;
  a.split_out = reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(context.workspace.data) + kWorkCounterBytes);
  a.split_factors = reinterpret_cast<float2*>(a.split_out + splits * kValueDim);
  a.split_lse = reinterpret_cast<float*>(a.split_factors + splits);
  a.split_max = a.split_lse + splits;
  return a;
}

template <int kDim, class Source>
void run_whole(const TokenArgs<Source>& tokens, int64_t count, const Extent& e, const SplitArgs<Source>& splits,
               const ExecutionContext& context) {
  WholeArgs<Source> a{};
  static_cast<TokenArgs<Source>&>(a) = tokens;
  a.splits = splits;
  if (a.kMappedOut && a.out_aligned) {
    a.out_map = sm90::column_groups_map("sparse attention: out", a.out, count, e.heads, kValueDim, a.out_token_stride, a.out_head_stride,
                                        kStoredHeads, kStoredChunks);
  }
  const bool two_head_tiles = e.two_head_tiles(count);
  const int64_t iterations = two_head_tiles ? count : a.num_items, blocks = std::min(iterations, e.sms);
  const bool dynamic = iterations > kStaticIterations * blocks;
  a.static_iterations = dynamic ? static_cast<int32_t>(kStaticIterations * blocks) : std::numeric_limits<int32_t>::max();
  a.next_iteration = dynamic ? static_cast<uint32_t*>(context.workspace.data) : nullptr;
  if (dynamic && a.rows_aligned && e.keeps_rows())
    a.keeping_items = static_cast<int32_t>(kStaticIterations * blocks) << (two_head_tiles ? 1 : 0);
  const auto num_blocks = static_cast<int>(blocks);
  if constexpr (Source::kOneMatrix && kDim == 512) {
    if (two_head_tiles) return launch_tokens<Source, kDim, true>(a, num_blocks, context);
  }
  launch_tokens<Source, kDim, false>(a, num_blocks, context);
}

// kDim: dimensions of a row. `all`: arguments without what follows from the extent. batch_invariant: no token is split.
template <int kDim, class Source>
void run_call(const TokenArgs<Source>& all, const Extent& e, bool batch_invariant, const ExecutionContext& context) {
  const Plan of_call = batch_invariant ? Plan{e.tokens, 0, 1, e.row_tiles} : plan(e.tokens, e.row_tiles, e.slots());
  SplitArgs<Source> splits{};
  if (of_call.cut > 0) splits = split_args(tokens_of(all, e, of_call.whole, of_call.cut), of_call, context);
  if (of_call.whole > 0) {
    run_whole<kDim>(tokens_of(all, e, 0, of_call.whole), of_call.whole, e, splits, context);
  } else if (of_call.cut > 0) {
    const auto blocks = static_cast<int>(std::min<int64_t>(splits.num_items, e.sms));
    launch_splits<Source, kDim>(splits, blocks, context);
  }
  if (of_call.cut > 0) launch_combine(splits, /*fixed_order=*/false, context);
}

}  // namespace strata::cuda::sparse_prefill
