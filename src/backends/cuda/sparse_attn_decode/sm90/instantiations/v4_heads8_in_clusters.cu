#include "backends/cuda/sparse_attn_decode/sm90/instantiate_in_clusters.cuh"

template void strata::cuda::sparse_decode::launch_in_clusters<strata::KvFormat::fp8_ds_mla_v4, 8>(const DecodeArgs&, int64_t,
                                                                                                  const ExecutionContext&);
template int64_t strata::cuda::sparse_decode::allow_large_clusters<strata::KvFormat::fp8_ds_mla_v4, 8>(int64_t);
