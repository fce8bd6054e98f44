#include "backends/cuda/sparse_attn_decode/sm90/instantiate_persistent.cuh"

template void strata::cuda::sparse_decode::launch_persistent<16>(const DecodeArgs&, int64_t, int64_t, const ExecutionContext&);
