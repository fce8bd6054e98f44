#include "ops/norm/fusions.h"

#include "ops/factories.h"
#include "ops/fusion.h"

namespace strata::ops {
namespace {

using P = RmsNormPairParams;

constexpr Fusion<P, QNormRopeKvInsertParams> kInsertEpilogue{.name = "insert_epilogue",
                                                             .op = "qnorm_rope_kv_insert",
                                                             .kind = FusionKind::epilogue,
                                                             .requested = [](const P& p) { return p.insert_epilogue.has_value(); },
                                                             .without =
                                                                 [](const P& p, Arena& arena) {
                                                                   P rest = p;
                                                                   rest.insert_epilogue.reset();
                                                                   rest.kv_out = arena.tensor(DType::bf16, {p.kv.shape[0], p.kv.shape[1]});
                                                                   return rest;
                                                                 },
                                                             .call = [](const P& p, const P& rest) { return insertion(p, rest.kv_out); }};

}  // namespace

Implementation<P> with_norm_fusions(Implementation<P> norm) {
  return with_fusion(std::move(norm), kInsertEpilogue, make_qnorm_rope_kv_insert().implementations());
}

}  // namespace strata::ops
