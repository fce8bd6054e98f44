#include "backends/cuda/portable_attention/row_attention_kernel.cuh"

namespace strata::cuda {

RowAttentionTile row_attention_d512_heads64_narrow() { return row_attention_tile<RowAttentionConfig<512, 64, 32, 2, 1, 4, false, 1>>(); }

}  // namespace strata::cuda
