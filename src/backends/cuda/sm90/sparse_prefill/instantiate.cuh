// The definition behind launch.h.
#pragma once

#include "backends/cuda/common/check.h"
#include "backends/cuda/sm90/sparse_prefill/kernel.cuh"
#include "backends/cuda/sm90/sparse_prefill/launch.h"
#include "backends/cuda/sm90/sparse_prefill/problem.cuh"

namespace strata::cuda::sparse_prefill {

template <int kDim, bool kTogether>
void launch_prefill(const PrefillArgs& args, int blocks, cudaStream_t stream) {
  constexpr auto kernel = row_tiles_kernel<PrefillProblem<kDim, kTogether>>;
  constexpr int kSharedBytes = sizeof(SharedMemory<Shape<kDim>>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "cudaFuncSetAttribute");
  kernel<<<blocks, kThreads, kSharedBytes, stream>>>(args);
  check_launch("row_tiles_kernel");
}

}  // namespace strata::cuda::sparse_prefill
