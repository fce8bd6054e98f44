#include "ops/compressor/fusions.h"

#include "ops/factories.h"
#include "ops/fusion.h"

namespace strata::ops {
namespace {

using P = CompressNormRopeStoreParams;

constexpr Fusion<P, SavePartialStatesParams> kSavePrologue{.name = "save_prologue",
                                                           .op = "save_partial_states",
                                                           .kind = FusionKind::prologue,
                                                           .requested = [](const P& p) { return p.save_prologue.has_value(); },
                                                           .without =
                                                               [](const P& p, Arena&) {
                                                                 P rest = p;
                                                                 rest.save_prologue.reset();
                                                                 return rest;
                                                               },
                                                           .call = [](const P& p, const P&) { return saves_of(p); }};

}  // namespace

Implementation<P> with_compress_fusions(Implementation<P> compression) {
  return with_fusion(std::move(compression), kSavePrologue, make_save_partial_states().implementations());
}

}  // namespace strata::ops
