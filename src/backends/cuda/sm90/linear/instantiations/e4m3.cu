#include "backends/cuda/sm90/linear/kernel.cuh"

namespace strata::cuda::sm90 {

const void* linear_kernel(int token_rows) {
  switch (token_rows) {
    case 8: return reinterpret_cast<const void*>(&few_tokens_kernel<8>);
    case 16: return reinterpret_cast<const void*>(&few_tokens_kernel<16>);
    case 32: return reinterpret_cast<const void*>(&few_tokens_kernel<32>);
    default: return reinterpret_cast<const void*>(&few_tokens_kernel<64>);
  }
}

}  // namespace strata::cuda::sm90
