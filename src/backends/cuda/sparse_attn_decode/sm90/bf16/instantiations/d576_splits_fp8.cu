#include "backends/cuda/mqa_engine/instantiate.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/bf16/paged_rows.cuh"

namespace strata::cuda::sparse_prefill {

template void launch_splits<PagedRows<1, true>, 576>(const SplitArgs<PagedRows<1, true>>&, int, const ExecutionContext&);

}  // namespace strata::cuda::sparse_prefill
