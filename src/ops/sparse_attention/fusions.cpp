#include "ops/sparse_attention/fusions.h"

#include "ops/factories.h"
#include "ops/fusion.h"
#include "ops/sparse_attention/query_tokens.h"

namespace strata::ops {
namespace {

using P = SparseAttnDecodeParams;

// For `entries` entries from `first` on, whose tokens are evenly spaced.
QNormRopeKvInsertParams query_norm(const P& p, const P& rest, int64_t first, int64_t entries) {
  const QueryNormRope& norm = *p.query_prologue;
  const TensorView q = as_tokens(entries_of(p.q, first, entries));
  TensorView kv = q;  // not read
  kv.rank = 2;
  kv.shape = {q.shape[0], q.shape[2], 0, 0};
  kv.stride = {q.stride[0], q.stride[2], 0, 0};
  return {.q = q,
          .kv = kv,
          .positions = positions_of(norm.positions, p.q, first, entries),
          .cos_sin = norm.cos_sin,
          .q_out = as_tokens(entries_of(rest.q, first, entries)),
          .eps = norm.eps};
}

// In place.
InverseRopeParams rotate_back(const P& p, const P&, int64_t first, int64_t entries) {
  const InverseRope& rope = *p.out_epilogue;
  const TensorView o = as_tokens(entries_of(p.out, first, entries));
  return {.o = o, .positions = positions_of(rope.positions, p.out, first, entries), .cos_sin = rope.cos_sin, .out = o};
}

constexpr Fusion<P, QNormRopeKvInsertParams> kQueryPrologue{
    .name = "query_prologue",
    .op = "qnorm_rope_kv_insert",
    .kind = FusionKind::prologue,
    .requested = [](const P& p) { return p.query_prologue.has_value(); },
    .without =
        [](const P& p, Arena& arena) {
          P rest = p;
          rest.query_prologue.reset();
          rest.q = arena.tensor(DType::bf16, {p.q.shape[0], p.q.shape[1], p.q.shape[2], p.q.shape[3]});
          return rest;
        },
    .call = [](const P& p, const P& rest) { return query_norm(p, rest, 0, p.q.shape[0]); },
    .parts = [](const P& p, const P& rest) { return even_parts(p.q, [&](auto... of) { return query_norm(p, rest, of...); }); }};

constexpr Fusion<P, InverseRopeParams> kOutEpilogue{
    .name = "out_epilogue",
    .op = "inverse_rope",
    .kind = FusionKind::epilogue,
    .requested = [](const P& p) { return p.out_epilogue.has_value(); },
    .without =
        [](const P& p, Arena&) {
          P rest = p;
          rest.out_epilogue.reset();
          return rest;
        },
    .call = [](const P& p, const P& rest) { return rotate_back(p, rest, 0, p.out.shape[0]); },
    .parts = [](const P& p, const P& rest) { return even_parts(p.out, [&](auto... of) { return rotate_back(p, rest, of...); }); }};

}  // namespace

Implementation<P> with_decode_fusions(Implementation<P> attention) {
  return with_fusion(with_fusion(std::move(attention), kOutEpilogue, make_inverse_rope().implementations()), kQueryPrologue,
                     make_qnorm_rope_kv_insert().implementations());
}

}  // namespace strata::ops
