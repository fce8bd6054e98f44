#include "backends/cuda/sm90/sparse_prefill/gathered_rows.cuh"
#include "backends/cuda/sm90/sparse_prefill/instantiate.cuh"

namespace strata::cuda::sparse_prefill {

template void launch_parts<GatheredRows, 576>(const PartArgs<GatheredRows>&, int, const ExecutionContext&);

}  // namespace strata::cuda::sparse_prefill
