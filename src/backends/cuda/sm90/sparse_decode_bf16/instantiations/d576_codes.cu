#include "backends/cuda/sm90/sparse_decode_bf16/paged_rows.cuh"
#include "backends/cuda/sm90/sparse_prefill/instantiate.cuh"

namespace strata::cuda::sparse_prefill {

template void launch_tokens<PagedRows<1, true>, 576, false>(const WholeArgs<PagedRows<1, true>>&, int, const ExecutionContext&);

}  // namespace strata::cuda::sparse_prefill
