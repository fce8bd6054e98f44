// Ops without a CUDA implementation yet: a line here goes when its implementation lands.
#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<SparseAttnDecodeParams>> sparse_attn_decode() { return {}; }
std::vector<Implementation<SparseAttnPrefillParams>> sparse_attn_prefill() { return {}; }
std::vector<Implementation<DenseAttnDecodeParams>> dense_attn_decode() { return {}; }
std::vector<Implementation<DenseAttnPrefillParams>> dense_attn_prefill() { return {}; }

}  // namespace strata::cuda
