#include "backends/cuda/portable_attention/row_attention_kernel.cuh"

namespace strata::cuda {

RowAttentionTile row_attention_d512_heads64() { return row_attention_tile<RowAttentionConfig<512, 64, 64, 2, 2, 2, false, 1>>(); }

}  // namespace strata::cuda
