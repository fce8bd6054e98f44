#include "backends/cuda/portable_attention/row_attention_kernel.cuh"

namespace strata::cuda {

RowAttentionTile row_attention_d576_heads16() { return row_attention_tile<RowAttentionConfig<576, 16, 32, 1, 1, 4, true, 2>>(); }

}  // namespace strata::cuda
