// Sparse prefill as a problem whose items are splits of the rows of 64 heads of one token, to be combined. Used for calls of few tokens,
// and for the tokens that remain after whole waves of CTAs.
#pragma once

#include "backends/cuda/mqa_engine/problem.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"

namespace strata::cuda::sparse_prefill {

template <class Source, int kRowDim>
struct SplitProblem {
  using Whole = PrefillProblem<Source, kRowDim, false>;
  static constexpr int kDim = kRowDim;
  using Shape = sparse_prefill::Shape<kDim, Source::kTileRows>;
  using Args = SplitArgs<Source>;
  static constexpr bool kSharesRows = false, kSplit = true, kInCluster = false, kMappedOut = false, kStartsEarly = true,
                        kLaunchesDependentsAtStart = false;
  static constexpr bool kSplitsFirst = false, kOnlySplits = true, kDynamicSchedule = false, kKeepsRows = false,
                        kQuantized = Source::kQuantized, kPlanned = false, kMixesQueries = false;

  static __device__ __forceinline__ void prefetch(const Args&) {}

  // The split index is the fastest, so that the CTAs of a token run at the same time.
  struct Item {
    int32_t token, first_head, split;
    int32_t first_row;  // of the split
    int32_t length;     // of the token
    int32_t tiles;      // 0: nothing to do
    __device__ __forceinline__ Item(const Args& a, int32_t item) {
      const int32_t whole = item / a.num_splits, first_tile = (item - whole * a.num_splits) * a.tiles_per_split;
      split = item - whole * a.num_splits;
      const typename Whole::Item of(a, whole);
      token = of.token, first_head = of.first_head, length = of.length;
      first_row = first_tile * Shape::kRows;
      tiles = max(min((length + Shape::kRows - 1) / Shape::kRows - first_tile, a.tiles_per_split), 0);
    }
  };

  static __device__ __forceinline__ int64_t split_index(const Args& a, const Item& item, int head) {
    return (int64_t{item.split} * a.num_tokens + item.token) * a.num_heads + head;
  }
  static __device__ __forceinline__ void store_ends(const Args& a, const Item& item, int head, float lse, float maximum) {
    const int64_t index = split_index(a, item, head);
    a.split_lse[index] = lse;
    a.split_max[index] = maximum;
  }
  // An item without tiles, called by the logits role.
  static __device__ __forceinline__ void mark_empty(const Args& a, const Item& item) {
    const int head = item.first_head + threadIdx.x % kWarpgroup;
    if (head < min(item.first_head + kHeadTile, a.num_heads)) store_ends(a, item, head, -INFINITY, -INFINITY);
  }

  static __device__ __forceinline__ bool exists(const Args& a, const Item&, int head) { return head < a.num_heads; }
  static __device__ __forceinline__ bool is_split(const Args&, const Item&) { return true; }
  // The queries of the item's token, and one query.
  static __device__ __forceinline__ const uint16_t* queries(const Args& a, const Item& item) { return a.q + item.token * a.q_token_stride; }
  static __device__ __forceinline__ const uint16_t* query(const Args& a, const Item&, const uint16_t* queries, int head) {
    return queries + head * a.q_head_stride;
  }
  static __device__ __forceinline__ float sink(const Args&, int) { return -INFINITY; }  // applied when the splits are combined
  static __device__ __forceinline__ float normalizer(float, float total, float) { return total == 0.0f ? 0.0f : ptx::rcp(total); }
  static __device__ __forceinline__ void store_sums(const Args& a, const Item& item, int head, float maximum, float total) {
    store_ends(a, item, head, total == 0.0f ? -INFINITY : maximum + __log2f(total), maximum);
  }

  static __device__ __forceinline__ uint16_t* split_out(const Args& a, const Item& item, int head) {
    return a.split_out + split_index(a, item, head) * kValueDim;
  }
  static __device__ __forceinline__ float& split_factor(const Args& a, const Item& item, int head, int half) {
    return reinterpret_cast<float*>(a.split_factors + split_index(a, item, head))[half];
  }

  struct Rows : Source::Reader {
    __device__ __forceinline__ Rows(const Args& a, const Item& item) : Source::Reader(a, item.token, item.first_row, item.length) {}
  };
};

}  // namespace strata::cuda::sparse_prefill
