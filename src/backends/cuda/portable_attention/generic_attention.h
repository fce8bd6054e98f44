// Attention for the shapes that the tensor-core kernels refuse: any head dimension up to 576.
#pragma once

#include "backends/cuda/portable_attention/row_attention.h"

namespace strata::cuda {

void generic_row_attention_run(const RowAttention& a, const ExecutionContext& context);

}  // namespace strata::cuda
