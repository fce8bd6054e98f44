#include "backends/cuda/mqa_engine/instantiate.cuh"
#include "backends/cuda/sparse_attn_prefill/sm90/gathered_rows.cuh"

namespace strata::cuda::sparse_prefill {

template void launch_tokens<GatheredRows, 512, true>(const WholeArgs<GatheredRows>&, int, const ExecutionContext&);

}  // namespace strata::cuda::sparse_prefill
