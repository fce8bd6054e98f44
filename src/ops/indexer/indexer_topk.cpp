#include <algorithm>
#include <utility>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "core/ceil_div.h"
#include "ops/factories.h"
#include "ops/indexer/fusions.h"
#include "ops/indexer/indexer_checks.h"

namespace strata::ops {
namespace {

void check_slots(ParamCheck& call, const IndexerTopkParams& p, DeviceId device) {
  if (!p.slots_epilogue) return;
  const TopkSlots& e = *p.slots_epilogue;
  ParamCheck c("indexer_topk: slots_epilogue", device);
  c.view("block_table", e.block_table, DType::i32, {kAny, kAny});
  c.require(e.page_size > 0, "page_size must be positive, is {}", e.page_size);
  call.view("token_to_req", p.token_to_req, DType::i32, {p.lengths.shape[0]});
  c.view("slots", e.slots, DType::i32, {kAny, p.topk_indices.shape[1]});
  const int64_t count = e.slots.shape[0];
  c.require(count <= p.lengths.shape[0], "slots must have at most {} rows, has {}", p.lengths.shape[0], count);
  check_output(c, "slots", e.slots);
  c.view("lens", e.lens, DType::i32, {count});
  if (!host_visible(p.lengths) || !host_visible(p.token_to_req) || !host_visible(e.block_table)) return;
  for (int64_t t = 0; t < count; ++t) {
    const int64_t length = p.lengths.ptr<int32_t>()[t], request = p.token_to_req.ptr<int32_t>()[t], rows = e.block_table.shape[0];
    call.require(length == 0 || (request >= 0 && request < rows), "token_to_req[{}] must be in [0, {}), is {}", t, rows, request);
    // Entries past the table become -1, as compute_global_topk makes them.
    const int64_t blocks = std::min(ceil_div(length, int64_t{e.page_size}), e.block_table.shape[1]);
    check_blocks(c, t, p.token_to_req, e.block_table, 0, blocks, kMaxIndices / e.page_size, "block_table");
  }
}

// The scored query: given, or made by the prologue.
void check_scoring(ParamCheck& c, const IndexerTopkParams& p, DeviceId device) {
  if (!p.query_prologue) return check_scoring_views(c, p);
  for (const auto& [name, view] : {std::pair{"q", &p.q}, std::pair{"q_scale", &p.q_scale}, std::pair{"weights", &p.weights}}) {
    c.require(!view->present(), "{} must be absent with query_prologue, is {}", name, *view);
  }
  const IndexerQueryPrologue& query = *p.query_prologue;
  ParamCheck prologue("indexer_topk: query_prologue", device);
  check_query_inputs(prologue, query);
  const int64_t tokens = query.q.shape[0], dim = query.q.shape[2];
  c.cache("cache", p.cache, {KvFormat::indexer_fp8, KvFormat::indexer_mxfp4, KvFormat::bf16}, dim);
  prologue.require(p.cache.format == KvFormat::bf16 || dim == 128, "q must have 128 values per head for a cache of format {}, has {}",
                   to_string(p.cache.format), dim);
  check_addressing(c, p, tokens);
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
  check_slots(c, p, device);
  // Short contexts select everything: the caller need not have computed the scored operands.
  if (selects_all(p)) return;
  check_scoring(c, p, device);
  check_candidates(c, p);
}

}  // namespace

Op<IndexerTopkParams> make_indexer_topk() {
  return {"indexer_topk", check, join(cuda::indexer_topk(), opencl::indexer_topk(), cpu::indexer_topk(), reference::indexer_topk()),
          with_topk_fusions};
}

}  // namespace strata::ops
