// Launches of the Hopper decode kernels; each pair of template arguments is instantiated in a file of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/sparse_decode/config.h"

namespace strata::cuda::sparse_decode {

// kClusterSize = 1: up to 64 heads; 2: up to 128. kAligned: rows of the caches, of q and of out start at multiples of 16 bytes.
template <KvFormat kFormat, int kClusterSize, bool kAligned>
void launch_decode(const DecodeArgs& args, int64_t num_tokens, cudaStream_t stream);

// Merges the parts. Starts while the attention kernel in front of it runs; its blocks wait for the parts.
void launch_combine(const DecodeArgs& args, int64_t num_tokens, cudaStream_t stream);

extern template void launch_decode<KvFormat::fp8_ds_mla_v4, 1, true>(const DecodeArgs&, int64_t, cudaStream_t);
extern template void launch_decode<KvFormat::fp8_ds_mla_v4, 1, false>(const DecodeArgs&, int64_t, cudaStream_t);
extern template void launch_decode<KvFormat::fp8_ds_mla_v4, 2, true>(const DecodeArgs&, int64_t, cudaStream_t);
extern template void launch_decode<KvFormat::fp8_ds_mla_v4, 2, false>(const DecodeArgs&, int64_t, cudaStream_t);
extern template void launch_decode<KvFormat::fp8_ds_mla, 1, true>(const DecodeArgs&, int64_t, cudaStream_t);
extern template void launch_decode<KvFormat::fp8_ds_mla, 1, false>(const DecodeArgs&, int64_t, cudaStream_t);
extern template void launch_decode<KvFormat::fp8_ds_mla, 2, true>(const DecodeArgs&, int64_t, cudaStream_t);
extern template void launch_decode<KvFormat::fp8_ds_mla, 2, false>(const DecodeArgs&, int64_t, cudaStream_t);

}  // namespace strata::cuda::sparse_decode
