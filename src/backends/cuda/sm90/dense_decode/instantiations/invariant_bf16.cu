#include "backends/cuda/sm90/dense_decode/instantiate.cuh"

namespace strata::cuda::dense_decode {

template void launch_invariant<false>(const InvariantArgs&, int, const ExecutionContext&);

}  // namespace strata::cuda::dense_decode
