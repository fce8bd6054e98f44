// dense_attn_decode as row attention, for what implementations of it share.
#pragma once

#include "backends/cuda/smxx/attention/row_attention.h"
#include "strata/ops/dense_attention.h"

namespace strata::cuda {

RowAttention dense_row_attention(const DenseAttnDecodeParams& p);

}  // namespace strata::cuda
