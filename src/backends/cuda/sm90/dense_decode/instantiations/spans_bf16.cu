#include "backends/cuda/sm90/dense_decode/instantiate.cuh"

namespace strata::cuda::dense_decode {

template void launch_spans<false, false>(const SpanArgs&, int, const ExecutionContext&);

}  // namespace strata::cuda::dense_decode
