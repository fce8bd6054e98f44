#include "backends/cuda/dense_attn_decode/sm90/instantiate.cuh"

namespace strata::cuda::dense_decode {

template void launch_spans<false, true, Shares::by_lengths>(const SpanArgs&, const ExecutionContext&);

}  // namespace strata::cuda::dense_decode
