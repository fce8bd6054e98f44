#include "ops/indexer/fusions.h"

#include "ops/factories.h"
#include "ops/fusion.h"

namespace strata::ops {
namespace {

using P = IndexerTopkParams;

constexpr Fusion<P, IndexerQueryParams> kQueryPrologue{
    .name = "query_prologue",
    .op = "indexer_query",
    .kind = FusionKind::prologue,
    .requested = [](const P& p) { return p.query_prologue.has_value(); },
    .without =
        [](const P& p, Arena& arena) {
          if (!selects_all(p)) return without_query_prologue(p, arena);
          P rest = p;
          rest.query_prologue.reset();
          return rest;
        },
    .call = [](const P& p, const P& rest) { return query_call(*p.query_prologue, rest); },
    .idle = selects_all};

constexpr Fusion<P, ComputeGlobalTopkParams> kSlotsEpilogue{.name = "slots_epilogue",
                                                            .op = "compute_global_topk",
                                                            .kind = FusionKind::epilogue,
                                                            .requested = [](const P& p) { return p.slots_epilogue.has_value(); },
                                                            .without =
                                                                [](const P& p, Arena&) {
                                                                  P rest = p;
                                                                  rest.slots_epilogue.reset();
                                                                  return rest;
                                                                },
                                                            .call =
                                                                [](const P& p, const P&) {
                                                                  const TopkSlots& e = *p.slots_epilogue;
                                                                  ComputeGlobalTopkParams call{.topk_indices = p.topk_indices,
                                                                                               .token_to_req = p.token_to_req,
                                                                                               .block_table = e.block_table,
                                                                                               .page_size = e.page_size,
                                                                                               .global_indices = e.slots,
                                                                                               .lens = e.lens};
                                                                  call.topk_indices.shape[0] = call.token_to_req.shape[0] =
                                                                      e.slots.shape[0];
                                                                  return call;
                                                                }};

}  // namespace

Implementation<P> with_topk_fusions(Implementation<P> selection) {
  return with_fusion(with_fusion(std::move(selection), kSlotsEpilogue, make_compute_global_topk().implementations()), kQueryPrologue,
                     make_indexer_query().implementations());
}

}  // namespace strata::ops
