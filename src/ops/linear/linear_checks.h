// Checks of the weight of the linear ops, and of the alignment of its memory and that of x and y.
#pragma once

#include "core/check.h"
#include "ops/alignment_checks.h"
#include "strata/ops/linear.h"

namespace strata::ops {

// Throws unless the weight is complete: sizes, and either a row-major matrix with its scales or a packed form with its name.
void check_weight(ParamCheck& c, const LinearWeight* weight, int64_t groups, int64_t k);
// Throws unless the memory of x, y and the weight is as aligned as a CUDA device requires for their strides.
void check_alignment(ParamCheck& c, const TensorView& x, const LinearWeight& weight, const TensorView& y);

}  // namespace strata::ops
