// The norm and rotation of sparse_attn_decode's queries for implementations that do not begin with it by themselves.
#pragma once

#include <vector>

#include "strata/op.h"
#include "strata/ops/kv_insert.h"
#include "strata/ops/sparse_attention.h"

namespace strata::ops {

// Each of `attention` with the first of `norms`, of the same backend, in front of it where a call has norm_queries: they are then in the
// workspace. As they are where that is not built.
std::vector<Implementation<SparseAttnDecodeParams>> norm_in_front(std::vector<Implementation<SparseAttnDecodeParams>> attention,
                                                                  const std::vector<Implementation<QNormRopeKvInsertParams>>& norms);

}  // namespace strata::ops
