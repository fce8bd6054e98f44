// The list of sparse_attn_decode, fastest first.
#include "backends/cuda/sparse_attn_decode/impls.h"

#include "backends/cuda/cuda_ops.h"
#include "ops/factories.h"
#include "ops/sparse_attention/norm_in_front.h"
#include "ops/sparse_attention/rotate_behind.h"

namespace strata::cuda {

std::vector<Implementation<SparseAttnDecodeParams>> sparse_attn_decode() {
  return ops::join(
      std::vector{sparse_attn_decode_sm90()},
      ops::norm_in_front(
          ops::rotate_behind({sparse_attn_decode_bf16_sm90(), sparse_attn_decode_smxx(), sparse_attn_decode_generic()}, inverse_rope()),
          qnorm_rope_kv_insert()));
}

}  // namespace strata::cuda
