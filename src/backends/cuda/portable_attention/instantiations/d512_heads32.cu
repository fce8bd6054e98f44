#include "backends/cuda/portable_attention/row_attention_kernel.cuh"

namespace strata::cuda {

RowAttentionTile row_attention_d512_heads32() { return row_attention_tile<RowAttentionConfig<512, 32, 32, 1, 1, 4, false, 2>>(); }

}  // namespace strata::cuda
