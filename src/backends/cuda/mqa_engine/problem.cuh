// What is particular to sparse attention in the roles: its items and where their results go. Source: where a token's rows are. Dense
// decode has its own (backends/cuda/dense_attn_decode/sm90/problem.cuh).
#pragma once

#include "backends/cuda/mqa_engine/pipeline.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"

namespace strata::cuda::sparse_prefill {

template <class Source, int kRowDim>
struct PartProblem;

// kTogether: more than 64 heads, and no token has more than kSharedTiles tiles of rows.
template <class Source, int kRowDim, bool kTogether>
struct PrefillProblem {
  static constexpr int kDim = kRowDim;
  using Shape = sparse_prefill::Shape<kDim, Source::kTileRows>;
  static constexpr bool kSharesRows = kTogether;  // both items of a token are the same block's, and the rows are loaded once
  using Args = WholeArgs<Source>;
  using Parts = PartProblem<Source, kRowDim>;
  using OfToken = TokenArgs<Source>;
  static constexpr bool kPartsFirst = !kTogether;                        // of tokens left behind whole rounds of the multiprocessors
  static constexpr bool kSplit = false;                                  // an item is all rows of its token
  static constexpr bool kInCluster = false;                              // the two parts of its rows are a cluster's, which merges them
  static constexpr bool kMappedOut = OfToken::kMappedOut;                // Args have a tensor map of the output
  static constexpr bool kStartsEarly = true;                             // waits for the kernel in front by itself
  static constexpr bool kLetsOthersBegin = true;                         // the next kernel, from this one's beginning on
  static constexpr bool kOnlyParts = false;                              // results are always parts
  static constexpr bool kDeals = true;                                   // not all turns are in order
  static constexpr bool kCodes = Source::kCodes;                         // rows are e4m3 codes
  static constexpr bool kKeepsRows = kDim == 512 && Source::kOneMatrix;  // in L2, where Args say so
  static constexpr bool kPlanned = false;                                // the block's items are planned, in shared memory
  static constexpr bool kMixesQueries = false;                           // the heads of an item may be different queries'

  // Hints of what the first items read: not worth it here.
  static __device__ __forceinline__ void bring_near(const Args&) {}

  // 64 heads of one token.
  struct Item {
    int32_t token, first_head, length;
    int32_t tiles;  // at least one, whose rows may all be missing: an empty token has results too
    __device__ __forceinline__ Item(const OfToken& a, int32_t item)
        : token(item >> a.items_per_token_log2), first_head((item - (token << a.items_per_token_log2)) * kHeadTile) {
      length = a.count(token);
      tiles = max(1, (length + Shape::kRows - 1) / Shape::kRows);
    }
    __device__ __forceinline__ bool last_of_rows() const { return first_head > 0; }
  };

  // Of a head, in base 2. Loaded ahead of its use: at an item's end nothing hides a load.
  static __device__ __forceinline__ float sink(const OfToken& a, int head) {
    return a.sink != nullptr && head < a.num_heads ? a.sink[head] * kLog2e : -INFINITY;
  }

  // Of a head whose weights, relative to 2^maximum, add up to `total`: what its sums of values become the output by.
  static __device__ __forceinline__ float normalizer(float maximum, float total, float sink) {
    return total == 0.0f ? 0.0f : ptx::rcp(total + ptx::ex2(sink - maximum));
  }
  // Its lse and maximum (in base 2).
  static __device__ __forceinline__ void store_sums(const OfToken& a, const Item& item, int head, float maximum, float total) {
    if (a.lse != nullptr) a.lse_of(item.token, head) = total == 0.0f ? INFINITY : (maximum + __log2f(total)) * kLn2;
    if (a.max_logits != nullptr) a.max_of(item.token, head) = maximum * kLn2;
  }

  static __device__ __forceinline__ bool exists(const OfToken& a, const Item&, int head) { return head < a.num_heads; }
  // Those of the item's token, and one of them.
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
