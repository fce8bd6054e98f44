// The launch orders of a V4 layer's projections: V4 specification 16.
#pragma once

#include <span>

#include "layers/launch_order/launch.h"

namespace strata {

// The steps before attention, in the specification's order (V4 7).
enum class V4Step : uint8_t {
  latents,        // (a) qa, kv := x [wq_a ; wkv]
  norms,          // (b) the norms of qa and kv; the key is rotated, quantised and inserted
  queries,        // (c), (d) q := qa wq_b, its norm and rotation
  kv_scores,      // (e) kv, score := x [wkv ; wgate], of the compressor and of the indexer's
  keys,           // (e) compressed keys
  index_keys,     // (e) compressed keys of the indexer
  index_weights,  // (f) head weights of the indexer := x weights_proj
  index_queries,  // (f) queries of the indexer := qa indexer.wq_b
  index_query,    // (f) their rotation and quantisation; in an order without this step select_topk does both
  select_topk,    // (f) the top-k among the compressed keys
  topk_slots,     // (f) slots of a top-k that the caller gives
};

// The steps whose results a step reads.
constexpr StepSet reads_of(V4Step step) {
  using enum V4Step;
  switch (step) {
    case norms: return steps(latents);
    case queries: return steps(norms);
    case keys:
    case index_keys: return steps(kv_scores);
    case index_queries: return steps(norms);
    case index_query: return steps(index_queries, index_weights);
    case select_topk: return steps(index_keys, index_query, index_queries, index_weights);
    case latents:
    case kv_scores:
    case index_weights:
    case topk_slots: return {};
  }
  return {};
}

// What a launch order depends on.
struct V4Launches {
  bool compressor = false;    // of any ratio
  bool indexer = false;       // 4:1 layers
  bool selects = false;       // the indexer selects; false: the caller gives the top-k
  bool side_streams = false;  // steps on different streams overlap
  int64_t num_tokens = 0;
  int64_t query_rows = 0;        // rows of this rank's wq_b
  int64_t index_query_rows = 0;  // rows of the indexer's wq_b
};

using V4LaunchOrder = std::span<const Launch<V4Step>>;
// The fastest order measured for these sizes. Without side streams the steps run in list order.
V4LaunchOrder v4_launch_order(const V4Launches& sizes);
// Every order of a layer of this kind, for all sizes, orders of the same steps adjacent: a plan has room for all of them.
std::span<const V4LaunchOrder> v4_launch_orders(const V4Launches& kind);

}  // namespace strata
