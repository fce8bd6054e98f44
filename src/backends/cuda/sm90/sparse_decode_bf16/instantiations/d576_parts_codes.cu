#include "backends/cuda/sm90/sparse_decode_bf16/paged_rows.cuh"
#include "backends/cuda/sm90/sparse_prefill/instantiate.cuh"

namespace strata::cuda::sparse_prefill {

template void launch_parts<PagedRows<1, true>, 576>(const PartArgs<PagedRows<1, true>>&, int, const ExecutionContext&);

}  // namespace strata::cuda::sparse_prefill
