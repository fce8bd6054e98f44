// The list of dense_attn_decode, fastest first.
#include "backends/cuda/dense_attn_decode/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<DenseAttnDecodeParams>> dense_attn_decode() {
  return {dense_attn_decode_sm90(), dense_attn_decode_smxx(), dense_attn_decode_generic()};
}

}  // namespace strata::cuda
