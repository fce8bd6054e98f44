// The list of dense_attn_prefill, fastest first.
#include "backends/cuda/dense_attn_prefill/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<DenseAttnPrefillParams>> dense_attn_prefill() {
  return {dense_attn_prefill_sm90(), dense_attn_prefill_smxx(), dense_attn_prefill_generic()};
}

}  // namespace strata::cuda
