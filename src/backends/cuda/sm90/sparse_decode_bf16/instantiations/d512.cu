#include "backends/cuda/sm90/sparse_decode_bf16/paged_rows.cuh"
#include "backends/cuda/sm90/sparse_prefill/instantiate.cuh"

namespace strata::cuda::sparse_prefill {

template void launch_tokens<PagedRows<2, false>, 512, false>(const WholeArgs<PagedRows<2, false>>&, int, const ExecutionContext&);

}  // namespace strata::cuda::sparse_prefill
