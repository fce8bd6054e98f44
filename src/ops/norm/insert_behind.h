// The insertion of rms_norm_pair's key for implementations that do not do that by themselves.
#pragma once

#include <vector>

#include "strata/op.h"
#include "strata/ops/kv_insert.h"
#include "strata/ops/norm.h"

namespace strata::ops {

// Of the key that a call has left in kv_out: queries of no heads.
QNormRopeKvInsertParams insertion(const RmsNormPairParams& p);

// Each of `norms` with the first of `insertions`, of the same backend, behind it where a call has slots.
std::vector<Implementation<RmsNormPairParams>> insert_behind(std::vector<Implementation<RmsNormPairParams>> norms,
                                                             const std::vector<Implementation<QNormRopeKvInsertParams>>& insertions);

}  // namespace strata::ops
