#include "contracts/fused_calls.h"

#include "core/arena.h"
#include "formats/quantize.h"

namespace strata::ops {

QNormRopeKvInsertParams insertion(const RmsNormPairParams& p, const TensorView& kv) {
  const KeyInsert& insert = *p.insert_epilogue;
  const TensorView no_heads = TensorView::contiguous(nullptr, DType::bf16, p.kv.device, {p.kv.shape[0], 0, p.kv.shape[1]});
  return {.q = no_heads,
          .kv = kv,
          .positions = insert.positions,
          .cos_sin = insert.cos_sin,
          .slot_mapping = insert.slot_mapping,
          .cache = insert.cache,
          .q_out = no_heads,
          .eps = p.eps};
}

IndexerTopkParams without_query_prologue(const IndexerTopkParams& p, Arena& arena) {
  const TensorView& q = p.query_prologue->q;
  const int64_t tokens = q.shape[0], heads = q.shape[1], dim = q.shape[2];
  IndexerTopkParams rest = p;
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

IndexerQueryParams query_call(const IndexerQueryPrologue& query, const IndexerTopkParams& scored) {
  return {.q = query.q,
          .weights = query.weights,
          .positions = query.positions,
          .cos_sin = query.cos_sin,
          .pairing = query.pairing,
          .rope_slice = query.rope_slice,
          .hadamard = query.hadamard,
          .softmax_scale = query.softmax_scale,
          .head_scale = query.head_scale,
          .amax_floor = query.amax_floor,
          .q_out = scored.q,
          .q_scale_out = scored.q_scale,
          .weights_out = scored.weights};
}

}  // namespace strata::ops
