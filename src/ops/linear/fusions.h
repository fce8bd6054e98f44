// The quantised output of grouped_linear as a separate op.
#pragma once

#include "strata/op.h"
#include "strata/ops/linear.h"

namespace strata::ops {

// `product`, completed by the quantisation of an e4m3 y where its kernels leave bf16. Implementation::fuses is asked for "y_scale".
Implementation<GroupedLinearParams> with_grouped_linear_fusions(Implementation<GroupedLinearParams> product);

}  // namespace strata::ops
