#include <algorithm>
#include <utility>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/reference/reference.h"
#include "core/ceil_div.h"
#include "ops/factories.h"
#include "ops/indexer/indexer_checks.h"
#include "ops/run_with.h"

namespace strata::ops {
namespace {

void check_slots(ParamCheck& c, const IndexerTopkParams& p) {
  if (!p.slot_block_table.present()) {
    c.require(!p.slots.present(), "slots must be absent without slot_block_table, is {}", p.slots);
    c.require(!p.slot_lens.present(), "slot_lens must be absent without slot_block_table, is {}", p.slot_lens);
    return;
  }
  c.view("slot_block_table", p.slot_block_table, DType::i32, {kAny, kAny});
  c.require(p.slot_page_size > 0, "slot_page_size must be positive, is {}", p.slot_page_size);
  c.view("token_to_req", p.token_to_req, DType::i32, {p.lengths.shape[0]});
  c.view("slots", p.slots, DType::i32, {kAny, p.topk_indices.shape[1]});
  const int64_t count = p.slots.shape[0];
  c.require(count <= p.lengths.shape[0], "slots must have at most {} rows, has {}", p.lengths.shape[0], count);
  check_output(c, "slots", p.slots);
  c.view("slot_lens", p.slot_lens, DType::i32, {count});
  if (!host_visible(p.lengths) || !host_visible(p.token_to_req) || !host_visible(p.slot_block_table)) return;
  for (int64_t t = 0; t < count; ++t) {
    const int64_t length = p.lengths.ptr<int32_t>()[t], request = p.token_to_req.ptr<int32_t>()[t], rows = p.slot_block_table.shape[0];
    c.require(length == 0 || (request >= 0 && request < rows), "token_to_req[{}] must be in [0, {}), is {}", t, rows, request);
    // Entries behind the table become -1, as compute_global_topk makes them.
    const int64_t blocks = std::min(ceil_div(length, int64_t{p.slot_page_size}), p.slot_block_table.shape[1]);
    check_blocks(c, t, p.token_to_req, p.slot_block_table, 0, blocks, kMaxIndices / p.slot_page_size, "slot_block_table");
  }
}

void check_query_first(ParamCheck& c, const IndexerTopkParams& p) {
  if (!p.query.q.present()) return;
  check_query(c, p.query);
  const auto same = [&](std::string_view name, const TensorView& v, const TensorView& made) {
    c.require(v.data == made.data && v.dtype == made.dtype && v.rank == made.rank && v.shape == made.shape,
              "{} must be what query makes, {}, is {}", name, made, v);
  };
  same("q", p.q, p.query.q_out);
  same("q_scale", p.q_scale, p.query.q_scale_out);
  same("weights", p.weights, p.query.weights_out);
}

void check(const IndexerTopkParams& p, DeviceId device) {
  ParamCheck c("indexer_topk", device);
  c.view("lengths", p.lengths, DType::i32, {kAny});
  const int64_t tokens = p.lengths.shape[0];
  c.view("topk_indices", p.topk_indices, DType::i32, {tokens, kAny});
  c.require(p.topk_indices.shape[1] >= 1, "topk_indices must have at least 1 column, has {}", p.topk_indices.shape[1]);
  check_output(c, "topk_indices", p.topk_indices);
  c.require(p.max_length >= 0 && p.max_length < kMaxIndices, "max_length must be in [0, {}), is {}", kMaxIndices, p.max_length);
  c.values_in("lengths", p.lengths, 0, p.max_length + 1, false);
  check_slots(c, p);
  // Short contexts select everything: the caller need not have computed what would be scored.
  if (p.max_length <= p.topk_indices.shape[1]) return;
  check_scoring_views(c, p);
  check_query_first(c, p);
  check_candidates(c, p);
}

// Implementations that do not write slots, with the first of `lookups`, of the same backend, behind each where a call wants them.
std::vector<Implementation<IndexerTopkParams>> slots_behind(std::vector<Implementation<IndexerTopkParams>> selections,
                                                            const std::vector<Implementation<ComputeGlobalTopkParams>>& lookups) {
  return run_with(std::move(selections), lookups,
                  [](const auto& run, const auto& look_up, const IndexerTopkParams& p, const auto& context) {
                    run(p, context);
                    if (!p.slot_block_table.present()) return;
                    const int64_t count = p.slots.shape[0];
                    look_up.run({.topk_indices = p.topk_indices.slice(0, count),
                                 .token_to_req = p.token_to_req.slice(0, count),
                                 .block_table = p.slot_block_table,
                                 .page_size = p.slot_page_size,
                                 .global_indices = p.slots,
                                 .lens = p.slot_lens},
                                context);
                  });
}

// The same for implementations that do not make the query.
std::vector<Implementation<IndexerTopkParams>> query_in_front(std::vector<Implementation<IndexerTopkParams>> selections,
                                                              const std::vector<Implementation<IndexerQueryParams>>& queries) {
  return run_with(std::move(selections), queries, [](const auto& run, const auto& query, const IndexerTopkParams& p, const auto& context) {
    if (p.query.q.present() && p.max_length > p.topk_indices.shape[1]) query.run(p.query, context);
    run(p, context);
  });
}

}  // namespace

Op<IndexerTopkParams> make_indexer_topk() {
  return {"indexer_topk", check,
          join(cuda::indexer_topk(), query_in_front(slots_behind(cpu::indexer_topk(), cpu::compute_global_topk()), cpu::indexer_query()),
               query_in_front(slots_behind(reference::indexer_topk(), reference::compute_global_topk()), reference::indexer_query()))};
}

}  // namespace strata::ops
