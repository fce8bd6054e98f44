#include "backends/cuda/portable_attention/row_attention_kernel.cuh"

namespace strata::cuda {

RowAttentionTile row_attention_d512_heads16() { return row_attention_tile<RowAttentionConfig<512, 16, 32, 1, 1, 4, true, 3>>(); }

}  // namespace strata::cuda
