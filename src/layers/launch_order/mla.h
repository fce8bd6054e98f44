// The launch orders of an MLA layer's projections: MLA specification 5 and 11.
#pragma once

#include <span>

#include "layers/launch_order/launch.h"

namespace strata {

// The steps before attention, in the specification's order (MLA 5).
enum class MlaStep : uint8_t {
  index_keys,     // the indexer's keys of the step: product with wk, norm, rotation, quantisation, insertion
  index_weights,  // head weights of the indexer := x weights_proj
  latents,        // q_c, c, k_pe := x [q_a_proj ; kv_a_proj]
  norms,          // the norms of q_c and c
  index_queries,  // queries of the indexer := q_c indexer.wq_b
  select_topk,    // their rotation and quantisation, and the top-k among all keys
  topk_slots,     // slots of a top-k that the caller or an earlier layer gives
  queries,        // q := q_c q_b_proj
  insert_keys,    // the rotation of q and k_pe; the latent row is quantised and inserted
  absorb,         // q_absorbed := q W_UK, of the tokens that attend in the absorbed form
};

// The steps whose results a step reads.
constexpr StepSet reads_of(MlaStep step) {
  using enum MlaStep;
  switch (step) {
    case norms: return steps(latents);
    case index_queries: return steps(norms);
    case select_topk: return steps(index_keys, index_weights, index_queries);
    case queries: return steps(norms);
    case insert_keys: return steps(queries, norms);
    case absorb: return steps(insert_keys);
    case index_keys:
    case index_weights:
    case latents:
    case topk_slots: return {};
  }
  return {};
}

// What a launch order depends on.
struct MlaLaunches {
  bool sparse = false;   // attends to a top-k
  bool indexer = false;  // has an indexer of its own
  bool selects = false;  // the indexer selects; false: the top-k is given
};

using MlaLaunchOrder = std::span<const Launch<MlaStep>>;
// The fastest order measured. Without side streams the steps run in the order of the list.
MlaLaunchOrder mla_launch_order(const MlaLaunches& kind);

}  // namespace strata
