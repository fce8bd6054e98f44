// The quantised output of grouped_linear as a separate op.
#pragma once

#include "strata/op.h"
#include "strata/ops/linear.h"

namespace strata::ops {

// `product`, completed by quantising an e4m3 y where its kernels write bf16. Implementation::fuses is called with "y_scale".
Implementation<GroupedLinearParams> with_grouped_linear_fusions(Implementation<GroupedLinearParams> product);

}  // namespace strata::ops
