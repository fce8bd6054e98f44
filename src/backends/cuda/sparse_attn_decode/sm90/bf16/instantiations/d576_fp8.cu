#include "backends/cuda/mqa_engine/instantiate.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/bf16/paged_rows.cuh"

namespace strata::cuda::sparse_prefill {

template void launch_tokens<PagedRows<1, true>, 576, false>(const WholeArgs<PagedRows<1, true>>&, int, const ExecutionContext&);

}  // namespace strata::cuda::sparse_prefill
