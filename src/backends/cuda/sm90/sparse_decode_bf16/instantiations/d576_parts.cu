#include "backends/cuda/sm90/sparse_decode_bf16/paged_rows.cuh"
#include "backends/cuda/sm90/sparse_prefill/instantiate.cuh"

namespace strata::cuda::sparse_prefill {

template void launch_parts<PagedRows<1, false>, 576>(const PartArgs<PagedRows<1, false>>&, int, const ExecutionContext&);

}  // namespace strata::cuda::sparse_prefill
