#include "layers/launch_order/v4.h"

namespace strata {
namespace {

using enum V4Step;
using Order = std::span<const Launch<V4Step>>;

// Up to this number of tokens the chain of the indexer (its queries, the logits, the top-k) is the critical path.
constexpr int64_t kFewTokens = 64;
// With one token: if wq_b has at most this many times the indexer's rows, projecting the queries is faster than the top-k selection.
constexpr int64_t kFewQueryRows = 6;

// Where `keys` waits for the norms or for the indexer's queries, this leaves the SMs to them: figures in
// docs/decisions/0010-launch-order-is-data.md.

constexpr Launch<V4Step> kWindow[] = {{latents}, {norms}, {queries}};

constexpr Launch<V4Step> kCompressed128[] = {
    {.step = kv_scores, .stream = 1},
    {.step = latents},
    {.step = norms},
    {.step = keys, .stream = 1, .also_after = steps(norms)},
    {.step = queries},
};

constexpr Launch<V4Step> kGivenTopk[] = {
    {.step = kv_scores, .stream = 1},
    {.step = index_keys, .stream = 1},
    {.step = latents},
    {.step = norms},
    {.step = topk_slots, .stream = 2, .also_after = steps(norms)},
    {.step = keys, .stream = 1, .also_after = steps(norms)},
    {.step = queries},
};

// More tokens keep the tensor cores busy: both chains start together.
constexpr Launch<V4Step> kManyTokens[] = {
    {.step = kv_scores, .stream = 1},
    {.step = index_keys, .stream = 1},
    {.step = index_weights, .stream = 2},
    {.step = latents},
    {.step = norms},
    {.step = index_queries, .stream = 2},
    {.step = index_query, .stream = 2},
    {.step = select_topk, .stream = 2},
    {.step = keys, .stream = 1},
    {.step = queries},
};

// The selection is the critical path, so its projection goes first; the selection makes the indexer's query.
constexpr Launch<V4Step> kSeveralTokens[] = {
    {.step = kv_scores, .stream = 1},
    {.step = index_keys, .stream = 1},
    {.step = index_weights, .stream = 2},
    {.step = latents},
    {.step = norms},
    {.step = index_queries},
    {.step = select_topk, .stream = 2},
    {.step = keys, .stream = 1, .also_after = steps(index_queries)},
    {.step = queries},
};

// The indexer's keys are launched after its query: in a captured graph a kernel overlaps only the first-captured of its predecessors, and
// the query finishes last.
constexpr Launch<V4Step> kOneToken[] = {
    {.step = kv_scores, .stream = 1},
    {.step = index_weights, .stream = 2},
    {.step = latents},
    {.step = norms},
    {.step = index_queries},
    {.step = index_query, .stream = 2},
    {.step = index_keys, .stream = 1},
    {.step = select_topk, .stream = 2},
    {.step = keys, .stream = 1, .also_after = steps(index_queries)},
    {.step = queries},
};

// The queries take longer than the selection: both chains start together.
constexpr Launch<V4Step> kOneTokenManyQueryRows[] = {
    {.step = kv_scores, .stream = 1},
    {.step = index_weights, .stream = 2},
    {.step = latents},
    {.step = norms},
    {.step = index_queries, .stream = 2},
    {.step = index_query, .stream = 2},
    {.step = index_keys, .stream = 1},
    {.step = select_topk, .stream = 2},
    {.step = keys, .stream = 1, .also_after = steps(norms)},
    {.step = queries},
};

constexpr Order kOfWindow[] = {kWindow};
constexpr Order kOfCompressed128[] = {kCompressed128};
constexpr Order kOfGivenTopk[] = {kGivenTopk};
constexpr Order kOfSelection[] = {kManyTokens, kOneToken, kOneTokenManyQueryRows, kSeveralTokens};

}  // namespace

std::span<const Order> v4_launch_orders(const V4Launches& kind) {
  if (!kind.compressor) return kOfWindow;
  if (!kind.indexer) return kOfCompressed128;
  if (!kind.selects) return kOfGivenTopk;
  return kOfSelection;
}

Order v4_launch_order(const V4Launches& sizes) {
  const std::span<const Order> orders = v4_launch_orders(sizes);
  if (orders.size() == 1) return orders.front();
  if (!sizes.side_streams || sizes.num_tokens == 0 || sizes.num_tokens > kFewTokens) return kManyTokens;
  if (sizes.num_tokens > 1) return kSeveralTokens;
  return sizes.query_rows <= kFewQueryRows * sizes.index_query_rows ? Order(kOneToken) : Order(kOneTokenManyQueryRows);
}

}  // namespace strata
