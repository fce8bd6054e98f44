// Sparse attention as a problem of the roles: its items, and where their results go. Source: where a token's rows are. Dense decode has its
// own problem (backends/cuda/dense_attn_decode/sm90/problem.cuh).
#pragma once

#include "backends/cuda/mqa_engine/pipeline.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"

namespace strata::cuda::sparse_prefill {

template <class Source, int kRowDim>
struct SplitProblem;

// kTwoHeadTiles: more than 64 heads, and no token has more than kSharedTiles tiles of rows.
template <class Source, int kRowDim, bool kTwoHeadTiles>
struct PrefillProblem {
  static constexpr int kDim = kRowDim;
  using Shape = sparse_prefill::Shape<kDim, Source::kTileRows>;
  static constexpr bool kSharesRows = kTwoHeadTiles;  // one CTA computes both items of a token, and loads the rows once
  using Args = WholeArgs<Source>;
  using Splits = SplitProblem<Source, kRowDim>;
  using OfToken = TokenArgs<Source>;
  static constexpr bool kSplitsFirst = !kTwoHeadTiles;                   // runs splits of the tokens that remain after whole waves
  static constexpr bool kSplit = false;                                  // an item is all rows of its token
  static constexpr bool kInCluster = false;                              // the two splits of a token are a cluster, which combines them
  static constexpr bool kMappedOut = OfToken::kMappedOut;                // Args have a tensor map of the output
  static constexpr bool kStartsEarly = true;                             // waits for the preceding kernel by itself
  static constexpr bool kLaunchesDependentsAtStart = true;               // the next kernel may start when this one starts
  static constexpr bool kOnlySplits = false;                             // results are always splits
  static constexpr bool kDynamicSchedule = true;                         // later iterations are assigned dynamically
  static constexpr bool kQuantized = Source::kQuantized;                 // rows are e4m3
  static constexpr bool kKeepsRows = kDim == 512 && Source::kOneMatrix;  // in L2, where Args say so
  static constexpr bool kPlanned = false;                                // the CTA's items are planned, in shared memory
  static constexpr bool kMixesQueries = false;                           // the heads of an item may belong to different queries

  // Prefetches what the first items read: no gain here.
  static __device__ __forceinline__ void prefetch(const Args&) {}

  // 64 heads of one token.
  struct Item {
    int32_t token, first_head, length;
    int32_t tiles;  // at least one, which may have no attended row: an empty token has results too
    __device__ __forceinline__ Item(const OfToken& a, int32_t item)
        : token(item >> a.items_per_token_log2), first_head((item - (token << a.items_per_token_log2)) * kHeadTile) {
      length = a.count(token);
      tiles = max(1, (length + Shape::kRows - 1) / Shape::kRows);
    }
    __device__ __forceinline__ bool last_of_rows() const { return first_head > 0; }
  };

  // A head's sink, in base 2. Loaded before its use: at an item's end nothing hides a load.
  static __device__ __forceinline__ float sink(const OfToken& a, int head) {
    return a.sink != nullptr && head < a.num_heads ? a.sink[head] * kLog2e : -INFINITY;
  }

  // Factor from a head's sums of values to the output. `total`: sum of its weights, which are relative to 2^maximum.
  static __device__ __forceinline__ float normalizer(float maximum, float total, float sink) {
    return total == 0.0f ? 0.0f : ptx::rcp(total + ptx::ex2(sink - maximum));
  }
  // Stores the head's lse and maximum, given in base 2.
  static __device__ __forceinline__ void store_sums(const OfToken& a, const Item& item, int head, float maximum, float total) {
    if (a.lse != nullptr) a.lse_of(item.token, head) = total == 0.0f ? INFINITY : (maximum + __log2f(total)) * kLn2;
    if (a.max_logits != nullptr) a.max_of(item.token, head) = maximum * kLn2;
  }

  static __device__ __forceinline__ bool exists(const OfToken& a, const Item&, int head) { return head < a.num_heads; }
  // The queries of the item's token, and one query.
  static __device__ __forceinline__ const uint16_t* queries(const OfToken& a, const Item& item) {
    return a.q + item.token * a.q_token_stride;
  }
  static __device__ __forceinline__ const uint16_t* query(const OfToken& a, const Item&, const uint16_t* queries, int head) {
    return queries + head * a.q_head_stride;
  }
  static __device__ __forceinline__ uint16_t* out(const OfToken& a, const Item& item, int head) {
    return a.out + item.token * a.out_token_stride + head * a.out_head_stride;
  }

  // The rows of an item, by their position.
  struct Rows : Source::Reader {
    __device__ __forceinline__ Rows(const OfToken& a, const Item& item) : Source::Reader(a, item.token, 0, item.length) {}
  };
};

}  // namespace strata::cuda::sparse_prefill
