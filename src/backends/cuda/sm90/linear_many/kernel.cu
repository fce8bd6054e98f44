#include "backends/cuda/sm90/linear_many/kernel.cuh"

namespace strata::cuda::sm90 {

const void* linear_many_kernel() { return reinterpret_cast<const void*>(&many_tokens_kernel); }

}  // namespace strata::cuda::sm90
