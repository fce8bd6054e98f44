#include "backends/cuda/sm90/sparse_decode/instantiate_in_clusters.cuh"

template void strata::cuda::sparse_decode::launch_in_clusters<strata::KvFormat::fp8_ds_mla_v4, 8>(const DecodeArgs&, int64_t,
                                                                                                  const ExecutionContext&);
template bool strata::cuda::sparse_decode::clusters_fit<strata::KvFormat::fp8_ds_mla_v4, 8>(int64_t, int64_t);
