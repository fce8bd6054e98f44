#include "backends/cuda/sparse_attn_decode/sm90/instantiate.cuh"

template void strata::cuda::sparse_decode::launch_decode<strata::KvFormat::fp8_ds_mla_v4, 32>(const DecodeArgs&, int64_t,
                                                                                              const ExecutionContext&);
