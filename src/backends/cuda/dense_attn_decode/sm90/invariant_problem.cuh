// batch_invariant: a token's result depends on its own rows alone. A CTA never mixes query tokens.
#pragma once

#include "backends/cuda/dense_attn_decode/sm90/problem.cuh"

namespace strata::cuda::dense_decode {

template <bool kE4m3>
struct InvariantProblem : DenseProblem<InvariantArgs, kE4m3> {
  using Base = DenseProblem<InvariantArgs, kE4m3>;
  using Args = InvariantArgs;
  using Shape = sparse_prefill::Shape<kRowDim, kTileRows>;
  static constexpr bool kPlanned = false, kInCluster = false, kMixesQueries = false;

  struct Item {
    int32_t request, split, first_head;
    int32_t token;      // -1: the request has no such query
    int32_t visible;    // rows of the token
    int32_t first_row;  // of the split
    int32_t tiles;      // 0: nothing to do
    __device__ __forceinline__ Item(const Args& a, int32_t item) {
      const auto take = [&](int32_t count) {
        const int32_t rest = item / count, taken = item - rest * count;
        item = rest;
        return taken;
      };
      first_head = take(a.head_tiles) * kHeadTile;
      const int32_t query = take(a.max_queries);
      split = take(a.num_splits);
      request = item;
      const Sequence s = a.request(request);
      token = query < s.queries ? s.token + query : -1;
      visible = a.seen(s, query);
      const int32_t all = ceil_div32(visible, kTileRows), tiles_per_split = max(kInvariantTiles, ceil_div32(all, kInvariantSplits));
      first_row = split * tiles_per_split * kTileRows;
      tiles = min(all - split * tiles_per_split, tiles_per_split);
      // Without splits a token without rows has results too: those of a tile of no rows.
      tiles = token < 0 ? 0 : max(tiles, a.num_splits == 1 ? 1 : 0);
    }
  };

  static __device__ __forceinline__ bool exists(const Args& a, const Item&, int head) { return head < a.num_heads; }
  static __device__ __forceinline__ bool is_split(const Args& a, const Item&) { return a.num_splits > 1; }
  static __device__ __forceinline__ int64_t split_index(const Args& a, const Item& item, int head) {
    return (int64_t{item.split} * a.num_tokens + item.token) * a.num_heads + head;
  }
  // An item without tiles, called by the logits role.
  static __device__ __forceinline__ void mark_empty(const Args& a, const Item& item) {
    const int head = item.first_head + threadIdx.x % kWarpgroup;
    if (item.token >= 0 && head < min(item.first_head + kHeadTile, a.num_heads)) a.split_lse[split_index(a, item, head)] = -INFINITY;
  }
  static __device__ __forceinline__ void store_sums(const Args& a, const Item& item, int head, float maximum, float total) {
    const bool empty = total == 0.0f;
    const float lse = maximum + __log2f(total);
    if (a.num_splits > 1) {
      a.split_lse[split_index(a, item, head)] = empty ? -INFINITY : lse;
    } else if (a.lse != nullptr) {
      a.lse_of(item.token, head) = empty ? INFINITY : lse * kLn2;
    }
  }
  // The queries of the item's token, and one query.
  static __device__ __forceinline__ const uint16_t* queries(const Args& a, const Item& item) { return a.q + item.token * a.q_token_stride; }
  static __device__ __forceinline__ const uint16_t* query(const Args& a, const Item&, const uint16_t* queries, int head) {
    return queries + head * a.q_head_stride;
  }
  static __device__ __forceinline__ uint16_t* out(const Args& a, const Item& item, int head) {
    return a.out + item.token * a.out_token_stride + head * a.out_head_stride;
  }
  static __device__ __forceinline__ uint16_t* split_out(const Args& a, const Item& item, int head) {
    return a.split_out + split_index(a, item, head) * kValueDim;
  }
  static __device__ __forceinline__ float& split_factor(const Args& a, const Item& item, int head, int half) {
    return reinterpret_cast<float*>(a.split_factors + split_index(a, item, head))[half];
  }

  struct Rows : Base::PagesOf {
    __device__ __forceinline__ Rows(const Args& a, const Item& item) : Base::PagesOf(a, item.request, item.first_row, item.visible) {}
  };

  static __device__ __forceinline__ void prefetch(const Args& a) {
    const Item item(a, static_cast<int32_t>(blockIdx.x));
    if (item.tiles == 0 || static_cast<uint32_t>(item.token) >= static_cast<uint32_t>(a.num_tokens)) return;
    Base::prefetch(static_cast<int>(threadIdx.x), sparse_prefill::kThreads, Rows(a, item), min(kHeadTile, a.num_heads - item.first_head),
                   [&](int i) { return query(a, item, queries(a, item), item.first_head + i); });
  }
};

}  // namespace strata::cuda::dense_decode
