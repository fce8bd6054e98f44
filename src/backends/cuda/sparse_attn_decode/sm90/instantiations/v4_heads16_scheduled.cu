#include "backends/cuda/sparse_attn_decode/sm90/instantiate_scheduled.cuh"

template void strata::cuda::sparse_decode::launch_scheduled<16>(const DecodeArgs&, int64_t, const ExecutionContext&);
