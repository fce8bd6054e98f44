#include "ops/norm/insert_behind.h"

#include <utility>

#include "ops/run_with.h"

namespace strata::ops {

QNormRopeKvInsertParams insertion(const RmsNormPairParams& p) {
  const TensorView no_heads = TensorView::contiguous(nullptr, DType::bf16, p.kv.device, {p.kv.shape[0], 0, p.kv.shape[1]});
  return {.q = no_heads,
          .kv = p.kv_out,
          .positions = p.positions,
          .cos_sin = p.cos_sin,
          .slot_mapping = p.slot_mapping,
          .cache = p.cache,
          .q_out = no_heads,
          .eps = p.eps};
}

std::vector<Implementation<RmsNormPairParams>> insert_behind(std::vector<Implementation<RmsNormPairParams>> norms,
                                                             const std::vector<Implementation<QNormRopeKvInsertParams>>& insertions) {
  return run_with(std::move(norms), insertions, [](const auto& run, const auto& insert, const RmsNormPairParams& p, const auto& context) {
    run(p, context);
    if (p.slot_mapping.present()) insert.run(insertion(p), context);
  });
}

}  // namespace strata::ops
