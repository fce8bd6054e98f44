// The epilogue of rms_norm_pair as a separate op.
#pragma once

#include "contracts/fused_calls.h"
#include "strata/op.h"
#include "strata/ops/norm.h"

namespace strata::ops {

// `norm`, completed by the epilogue where its kernels do not fuse it.
Implementation<RmsNormPairParams> with_norm_fusions(Implementation<RmsNormPairParams> norm);

}  // namespace strata::ops
