// The list of sparse_attn_prefill, fastest first.
#include "backends/cuda/sparse_attn_prefill/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<SparseAttnPrefillParams>> sparse_attn_prefill() {
  return {sparse_attn_prefill_sm90(), sparse_attn_prefill_smxx(), sparse_attn_prefill_generic()};
}

}  // namespace strata::cuda
