// The definition behind launch.h.
#pragma once

#include "backends/cuda/common/check.h"
#include "backends/cuda/sm90/sparse_decode/kernel.cuh"
#include "backends/cuda/sm90/sparse_decode/launch.h"

namespace strata::cuda::sparse_decode {

template <KvFormat kFormat, int kClusterSize, bool kAligned>
void launch_decode(const DecodeArgs& args, int64_t num_tokens, cudaStream_t stream) {
  constexpr auto kernel = sparse_decode_kernel<kFormat, kClusterSize, kAligned>;
  constexpr int kSharedBytes = sizeof(SharedMemory<kFormat>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "cudaFuncSetAttribute");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kClusterSize;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_tokens * kClusterSize), static_cast<unsigned>(args.num_splits));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, args), "sparse_decode_kernel");
}

}  // namespace strata::cuda::sparse_decode
