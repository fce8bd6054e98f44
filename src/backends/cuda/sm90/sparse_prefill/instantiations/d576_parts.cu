#include "backends/cuda/sm90/sparse_prefill/instantiate.cuh"

template void strata::cuda::sparse_prefill::launch_parts<576>(const PartArgs&, int, const strata::ExecutionContext&);
