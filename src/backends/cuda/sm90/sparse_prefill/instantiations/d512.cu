#include "backends/cuda/sm90/sparse_prefill/instantiate.cuh"

template void strata::cuda::sparse_prefill::launch_prefill<512, false>(const WholeArgs&, int, const strata::ExecutionContext&);
