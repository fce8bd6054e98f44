// The definition behind launch.h.
#pragma once

#include "backends/cuda/common/check.h"
#include "backends/cuda/sm90/sparse_decode/few_heads.cuh"
#include "backends/cuda/sm90/sparse_decode/kernel.cuh"
#include "backends/cuda/sm90/sparse_decode/launch.h"

namespace strata::cuda::sparse_decode {

template <KvFormat kFormat, int kHeads, bool kAligned>
void launch_decode(const DecodeArgs& args, int64_t num_tokens, cudaStream_t stream) {
  constexpr auto kernel = [] {
    if constexpr (kHeads == kHeadTile) {
      return sparse_decode_kernel<kFormat, kAligned>;
    } else {
      return few_heads_kernel<kFormat, kHeads, kAligned>;
    }
  }();
  constexpr int kSharedBytes = sizeof(SharedMemory<kFormat, kHeads>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "cudaFuncSetAttribute");
  const int64_t head_tiles = (args.num_heads + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(num_tokens * head_tiles), static_cast<unsigned>(args.num_splits));
  kernel<<<grid, kThreads, kSharedBytes, stream>>>(args);
  check_launch("sparse_decode_kernel");
}

}  // namespace strata::cuda::sparse_decode
