#include "layers/launch_order/mla.h"

namespace strata {
namespace {

using enum MlaStep;

constexpr Launch<MlaStep> kDense[] = {{latents}, {norms}, {queries}, {insert_keys}, {absorb}};

// The selection overlaps the queries. Its head weights depend on the layer's input alone, and go first so that the selection does not wait.
constexpr Launch<MlaStep> kSelection[] = {
    {.step = index_keys, .stream = 1},
    {.step = index_weights, .stream = 2},
    {.step = latents},
    {.step = norms},
    {.step = index_queries, .stream = 2},
    {.step = select_topk, .stream = 2, .also_after = steps(norms)},
    {.step = queries},
    {.step = insert_keys},
    {.step = absorb},
};

// Keys are written even where the selection is given: a later step may select among them.
constexpr Launch<MlaStep> kGivenTopkWithKeys[] = {
    {.step = index_keys, .stream = 1},
    {.step = latents},
    {.step = norms},
    {.step = topk_slots, .stream = 2, .also_after = steps(index_keys, norms)},
    {.step = queries},
    {.step = insert_keys},
    {.step = absorb},
};

constexpr Launch<MlaStep> kGivenTopk[] = {
    {.step = latents}, {.step = norms},       {.step = topk_slots, .stream = 2, .also_after = steps(norms)},
    {.step = queries}, {.step = insert_keys}, {.step = absorb},
};

}  // namespace

MlaLaunchOrder mla_launch_order(const MlaLaunches& kind) {
  if (!kind.sparse) return kDense;
  if (!kind.indexer) return kGivenTopk;
  return kind.selects ? MlaLaunchOrder(kSelection) : MlaLaunchOrder(kGivenTopkWithKeys);
}

}  // namespace strata
