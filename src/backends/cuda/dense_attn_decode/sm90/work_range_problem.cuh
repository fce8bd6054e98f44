// The CTAs of a call divide its rows evenly (plan.cuh). Pairs of several queries may share a tile: each row is then read once for all of
// them, and rows that a query does not see are masked in the last tiles.
#pragma once

#include "backends/cuda/dense_attn_decode/sm90/problem.cuh"

namespace strata::cuda::dense_decode {

struct WorkRangeShape : sparse_prefill::Shape<kRowDim, kTileRows> {
  using Plan = dense_decode::Plan;
};

// kCombinesInCluster: a cluster is two work ranges, and combines the splits of a sequence that consists of exactly these two.
template <bool kE4m3, bool kCombinesInCluster>
struct WorkRangeProblem : DenseProblem<WorkRangeArgs, kE4m3> {
  using Base = DenseProblem<WorkRangeArgs, kE4m3>;
  using Args = WorkRangeArgs;
  using Shape = WorkRangeShape;
  using Shared = sparse_prefill::SharedMemory<Shape>;
  static_assert(sizeof(Shared::k) >= kMaxSequences * sizeof(int32_t));
  static constexpr bool kPlanned = true, kInCluster = kCombinesInCluster, kMixesQueries = true;

  struct Item {
    Sequence of;
    int32_t request;
    int32_t first_head, end_head;  // pairs
    int32_t visible;               // rows that the last query of these sees
    int32_t first_row;
    int32_t tiles;  // 0: nothing to do
    int32_t open;   // number of first tiles whose rows all queries see
    int32_t split;  // index of the first pair's split; -1: the item is whole
    __device__ __forceinline__ Item(const Args& a, const Plan& plan, int32_t s) {
      of = plan.sequence(a, s);
      request = a.request_of(s);
      end_head = of.queries * a.num_heads;
      first_head = a.first_pair(s) + plan.gang_tile * kHeadTile;
      const int32_t all = a.tiles(of, s), first = s == plan.begin.sequence ? plan.begin.tile : 0,
                    end = s == plan.end.sequence ? plan.end.tile : all;
      tiles = first_head < end_head ? max(end - first, 0) : 0;
      first_row = first * kTileRows;
      split = first == 0 && end == all ? -1 : split_slot(plan.work_range, first == 0) * a.split_pairs + plan.gang_tile * kHeadTile;
      visible = a.seen_by_pair(of, min(first_head + kHeadTile, end_head) - 1);
      const int32_t by_all = a.seen_by_pair(of, first_head);
      open = by_all == visible ? tiles : max(by_all - first_row, 0) / kTileRows;
    }
  };

  struct QueryHead {
    int32_t token, head;
  };
  static __device__ __forceinline__ QueryHead query_head(const Args& a, const Item& item, int pair) {
    const int32_t query = a.heads.divide(pair);
    return {item.of.token + query, pair - query * a.num_heads};
  }
  // Rows of the item that the pair's query sees, for tiles from `open` on. Only causal calls have them. seen_by_pair() costs more spilled
  // registers.
  static __device__ __forceinline__ int32_t seen(const Args& a, const Item& item, int pair) {
    return a.seen_if_causal(item.of, a.heads.divide(pair)) - item.first_row;
  }

  static __device__ __forceinline__ bool exists(const Args&, const Item& item, int pair) { return pair < item.end_head; }
  static __device__ __forceinline__ bool is_split(const Args&, const Item& item) { return item.split >= 0; }
  static __device__ __forceinline__ int64_t split_index(const Item& item, int pair) { return item.split + pair - item.first_head; }
  static __device__ __forceinline__ void mark_empty(const Args&, const Item&) {}
  static __device__ __forceinline__ void store_sums(const Args& a, const Item& item, int pair, float maximum, float total) {
    const bool empty = total == 0.0f;
    const float lse = maximum + __log2f(total);
    if (item.split >= 0) {
      a.split_lse[split_index(item, pair)] = empty ? -INFINITY : lse;
    } else {
      store_lse(a, item, pair, empty ? INFINITY : lse * kLn2);
    }
  }
  static __device__ __forceinline__ void store_lse(const Args& a, const Item& item, int pair, float lse) {
    if (a.lse == nullptr) return;
    const QueryHead p = query_head(a, item, pair);
    a.lse_of(p.token, p.head) = lse;
  }
  static __device__ __forceinline__ const uint16_t* queries(const Args& a, const Item&) { return a.q; }
  static __device__ __forceinline__ const uint16_t* query(const Args& a, const Item& item, const uint16_t* queries, int pair) {
    const QueryHead p = query_head(a, item, pair);
    return queries + p.token * a.q_token_stride + p.head * a.q_head_stride;
  }
  static __device__ __forceinline__ uint16_t* out(const Args& a, const Item& item, int pair) {
    const QueryHead p = query_head(a, item, pair);
    return a.out + p.token * a.out_token_stride + p.head * a.out_head_stride;
  }
  static __device__ __forceinline__ uint16_t* split_out(const Args& a, const Item& item, int pair) {
    return a.split_out + split_index(item, pair) * kValueDim;
  }
  static __device__ __forceinline__ float& split_factor(const Args& a, const Item& item, int pair, int half) {
    return reinterpret_cast<float*>(a.split_factors + split_index(item, pair))[half];
  }

  struct Rows : Base::PagesOf {
    __device__ __forceinline__ Rows(const Args& a, const Item& item) : Base::PagesOf(a, item.request, item.first_row, item.visible) {}
  };

  // Plans the CTA's work from the lengths while the preceding kernel still runs, and again afterwards if they have changed. The value
  // warpgroups, which are last to work on a tile, meanwhile prefetch what is read first: the other roles do not wait for them.
  static __device__ __forceinline__ void start(const Args& a, Shared& shared) {
    Plan& plan = shared.plan;
    const CtaWork work(a);
    if (threadIdx.x == 0) plan.work_range = work.work_range, plan.gang_tile = work.gang_tile;
    using PlannerOf = Planner<Args, sparse_prefill::kThreads>;
    PlannerOf planner(a, plan, reinterpret_cast<int32_t*>(&shared.k));
#pragma unroll 1
    for (bool again = false;; again = true) {
      planner.make(work.work_range, kCombinesInCluster);
      if (again) break;
      if (!planner.is_checker()) prefetch(a, plan);
      ptx::wait_for_previous_kernel();
      bool holds = true;
      if (!planner.checkers_have_all()) {
        holds = __syncthreads_and(planner.same()) != 0;
      } else if (planner.is_checker()) {
        holds = ptx::barrier_and(kCheckers, PlannerOf::kCheckers, planner.same());
        if (threadIdx.x == 0) plan.holds = holds;
        __threadfence_block();
        ptx::barrier_arrive(kChecked, sparse_prefill::kThreads);
      } else {
        ptx::barrier_sync(kChecked, sparse_prefill::kThreads);
        holds = plan.holds;
      }
      if (holds) break;
    }
    publish_splits(a, plan);
  }

 protected:
  // The work of a CTA: tile `gang_tile` of a work range.
  struct CtaWork {
    int32_t work_range, gang_tile;
    __device__ __forceinline__ explicit CtaWork(const Args& a) {
      const auto block = static_cast<int32_t>(blockIdx.x), team = kCombinesInCluster ? block / 2 : block;
      const int32_t of_range = team / a.gang;
      work_range = kCombinesInCluster ? 2 * of_range + block % 2 : of_range, gang_tile = team - of_range * a.gang;
    }
  };

  static __device__ __forceinline__ void publish_splits(const Args& a, const Plan& plan) {
    if (threadIdx.x == kWarpgroup && plan.gang_tile == 0) {
      SplitSequence split_sequence{};
      if (plan.splits > 0) {
        const Sequence s = plan.sequence(a, plan.end.sequence);
        split_sequence = {
            .token = s.token, .first_pair = a.first_pair(plan.end.sequence), .pairs = s.queries * a.num_heads, .splits = plan.splits};
      }
      a.split_sequences[plan.work_range] = split_sequence;
    }
  }

  static __device__ __forceinline__ void prefetch(const Args& a, const Plan& plan) {
    if (plan.begin.sequence >= plan.end_sequence()) return;
    const Item item(a, plan, plan.begin.sequence);
    const int pairs = min(kHeadTile, item.end_head - item.first_head);
    if (item.tiles == 0 || item.of.token < 0 || item.of.token > a.num_tokens - item.of.queries) return;
    Base::prefetch(static_cast<int>(threadIdx.x) - kWarpgroup, 2 * kWarpgroup, Rows(a, item), pairs,
                   [&](int i) { return query(a, item, queries(a, item), item.first_head + i); });
  }

 private:
  static constexpr uint32_t kCheckers = 1, kChecked = 2;  // named barriers, which the roles use for other purposes later
};

}  // namespace strata::cuda::dense_decode
