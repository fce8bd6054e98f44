#include "backends/cuda/mqa_engine/instantiate.cuh"
#include "backends/cuda/sparse_attn_prefill/sm90/gathered_rows.cuh"

namespace strata::cuda::sparse_prefill {

template void launch_splits<GatheredRows, 576>(const SplitArgs<GatheredRows>&, int, const ExecutionContext&);

}  // namespace strata::cuda::sparse_prefill
