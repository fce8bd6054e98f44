#include "backends/cuda/dense_attn_decode/sm90/instantiate.cuh"

namespace strata::cuda::dense_decode {

template void launch_invariant<true>(const InvariantArgs&, int, const ExecutionContext&);

}  // namespace strata::cuda::dense_decode
