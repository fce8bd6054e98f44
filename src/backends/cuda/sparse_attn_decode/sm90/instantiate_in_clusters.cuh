// The definitions of launch.h for CTAs in clusters.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/instantiate.cuh"

namespace strata::cuda::sparse_decode {

template <KvFormat kFormat, int kHeads>
int64_t allow_large_clusters(int64_t blocks) {
  constexpr size_t kShared = sizeof(few_heads::Shared<kFormat, kHeads, true>);
  const auto kernel = few_heads_kernel<kFormat, kHeads, Cut::in_cluster>;
  allow_shared_bytes(kernel, kShared);
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
        "cudaFuncSetAttribute");
  constexpr int64_t kMany = 256;  // clusters; more than an SM group count
  const LaunchConfig config({.grid = dim3(static_cast<unsigned>(kMany * blocks)),
                             .block = dim3(few_heads::kBlockThreads),
                             .shared_bytes = kShared,
                             .cluster = static_cast<unsigned>(blocks)},
                            nullptr, /*early=*/false);
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, config.get()) == cudaSuccess) return clusters;
  cudaGetLastError();  // no such cluster fits
  return 0;
}

template <KvFormat kFormat, int kHeads>
void launch_in_clusters(const DecodeArgs& args, int64_t num_tokens, const ExecutionContext& context) {
  const int64_t clusters = num_tokens * ((args.num_heads + kHeads - 1) / kHeads);
  const dim3 grid(static_cast<unsigned>(clusters * args.num_splits));
  const auto blocks = static_cast<unsigned>(args.num_splits);
  if constexpr (kHeads == kHeadTile) {
    launch_decode(sparse_decode_kernel<kFormat, Cut::in_cluster>, kThreads, sizeof(SharedMemory<kFormat, kHeads>), args, grid, context,
                  blocks);
  } else {
    launch_decode(few_heads_kernel<kFormat, kHeads, Cut::in_cluster>, few_heads::kBlockThreads,
                  sizeof(few_heads::Shared<kFormat, kHeads, true>), args, grid, context, blocks);
  }
}

}  // namespace strata::cuda::sparse_decode
