// The epilogue of rms_norm_pair as a separate op.
#pragma once

#include "strata/op.h"
#include "strata/ops/kv_insert.h"
#include "strata/ops/norm.h"

namespace strata::ops {

// The call of qnorm_rope_kv_insert, with queries of no heads, that is the epilogue of `p` where its key has been normalised to `kv`.
QNormRopeKvInsertParams insertion(const RmsNormPairParams& p, const TensorView& kv);

// `norm`, completed by the epilogue where its kernels do not fuse it.
Implementation<RmsNormPairParams> with_norm_fusions(Implementation<RmsNormPairParams> norm);

}  // namespace strata::ops
