#include "backends/cuda/portable_attention/row_attention_kernel.cuh"

namespace strata::cuda {

RowAttentionTile row_attention_d576_heads32() { return row_attention_tile<RowAttentionConfig<576, 32, 32, 1, 1, 4, false, 1>>(); }

}  // namespace strata::cuda
