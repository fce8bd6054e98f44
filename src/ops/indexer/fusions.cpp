#include "ops/indexer/fusions.h"

#include "formats/quantize.h"
#include "ops/factories.h"
#include "ops/fusion.h"

namespace strata::ops {
namespace {

using P = IndexerTopkParams;

constexpr Fusion<P, IndexerQueryParams> kQueryPrologue{
    .name = "query_prologue",
    .kind = FusionKind::prologue,
    .requested = [](const P& p) { return p.query_prologue.has_value() && !selects_all(p); },
    .without = without_query_prologue,
    .call = query_call};

constexpr Fusion<P, ComputeGlobalTopkParams> kSlotsEpilogue{.name = "slots_epilogue",
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

P without_query_prologue(const P& p, Arena& arena) {
  const TensorView& q = p.query_prologue->q;
  const int64_t tokens = q.shape[0], heads = q.shape[1], dim = q.shape[2];
  P rest = p;
  rest.query_prologue.reset();
  switch (p.cache.format) {
    case KvFormat::indexer_fp8: rest.q = arena.tensor(DType::e4m3, {tokens, heads, dim}); break;
    case KvFormat::indexer_mxfp4:
      rest.q = arena.tensor(DType::u8, {tokens, heads, dim / 2});
      rest.q_scale = arena.tensor(DType::e8m0, {tokens, heads, dim / kMxfp4Block});
      break;
    default: rest.q = arena.tensor(DType::bf16, {tokens, heads, dim});
  }
  rest.weights = arena.tensor(DType::f32, {tokens, heads});
  return rest;
}

IndexerQueryParams query_call(const P& p, const P& rest) {
  const IndexerQueryPrologue& query = *p.query_prologue;
  return {.q = query.q,
          .weights = query.weights,
          .positions = query.positions,
          .cos_sin = query.cos_sin,
          .pairing = query.pairing,
          .lanes = query.lanes,
          .hadamard = query.hadamard,
          .softmax_scale = query.softmax_scale,
          .head_scale = query.head_scale,
          .amax_floor = query.amax_floor,
          .q_out = rest.q,
          .q_scale_out = rest.q_scale,
          .weights_out = rest.weights};
}

Implementation<P> with_topk_fusions(Implementation<P> selection) {
  return with_fusion(with_fusion(std::move(selection), kSlotsEpilogue, make_compute_global_topk().implementations()), kQueryPrologue,
                     make_indexer_query().implementations());
}

}  // namespace strata::ops
