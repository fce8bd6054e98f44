// Shared checks of the MLA insert ops.
#pragma once

#include "ops/kv_insert/row_checks.h"

namespace strata::ops {

// Both absent, or positions i64 [tokens] inside the table cos_sin f32 [max_positions, R].
inline void check_rotation(ParamCheck& c, const TensorView& positions, const TensorView& cos_sin, int64_t tokens) {
  if (!cos_sin.present()) return c.optional("positions", positions, DType::i64, {tokens});
  c.view("cos_sin", cos_sin, DType::f32, {kAny, kAny});
  c.view("positions", positions, DType::i64, {tokens});
  c.values_in("positions", positions, 0, cos_sin.shape[0], false);
}

// slot_mapping i64 [N], N <= tokens, of slots of the cache or negative.
inline void check_slots(ParamCheck& c, const TensorView& slot_mapping, int64_t tokens, const PagedCache& cache) {
  c.view("slot_mapping", slot_mapping, DType::i64, {kAny});
  c.require(slot_mapping.shape[0] <= tokens, "slot_mapping must have at most {} entries, one per token, has {}", tokens,
            slot_mapping.shape[0]);
  c.values_in("slot_mapping", slot_mapping, 0, cache.num_slots(), true);
}

}  // namespace strata::ops
