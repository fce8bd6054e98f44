#include "backends/cuda/sparse_attn_decode/sm90/instantiate_in_clusters.cuh"

template void strata::cuda::sparse_decode::launch_in_clusters<strata::KvFormat::fp8_ds_mla, 64>(const DecodeArgs&, int64_t,
                                                                                                const ExecutionContext&);
