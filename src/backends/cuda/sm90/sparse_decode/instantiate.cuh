// The definition behind launch.h.
#pragma once

#include "backends/cuda/common/early_launch.cuh"
#include "backends/cuda/sm90/sparse_decode/few_heads.cuh"
#include "backends/cuda/sm90/sparse_decode/head_turns.cuh"
#include "backends/cuda/sm90/sparse_decode/launch.h"

namespace strata::cuda::sparse_decode {

template <class... Params>
void launch_decode(void (*kernel)(Params...), int threads, size_t shared_bytes, const DecodeArgs& args, dim3 grid,
                   const ExecutionContext& context, unsigned cluster = 1) {
  allow_shared_bytes(kernel, shared_bytes);
  launch_early("sparse_decode_kernel", kernel,
               {.grid = grid, .block = dim3(static_cast<unsigned>(threads)), .shared_bytes = shared_bytes, .cluster = cluster}, context,
               args);
}

template <KvFormat kFormat, int kHeads, bool kAligned>
void launch_decode(const DecodeArgs& args, int64_t num_tokens, const ExecutionContext& context) {
  const int64_t head_tiles = (args.num_heads + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(num_tokens * head_tiles), static_cast<unsigned>(args.num_splits));
  if constexpr (kHeads == kHeadTile) {
    launch_decode(sparse_decode_kernel<kFormat, kAligned, false>, kThreads, sizeof(SharedMemory<kFormat, kHeads>), args, grid, context);
  } else if constexpr (kHeads == 2 * kHeadTile) {
    static_assert(kAligned);
    launch_decode(sparse_decode_head_turns_kernel<kFormat>, kThreads, sizeof(HeadTurnsShared<kFormat>), args, grid, context);
  } else {
    launch_decode(few_heads_kernel<kFormat, kHeads, kAligned, false>, few_heads::kBlockThreads, sizeof(few_heads::Shared<kFormat, kHeads>),
                  args, grid, context);
  }
}

template <class Kernel>
void allow_large_clusters(Kernel* kernel) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
        "cudaFuncSetAttribute");
}

template <KvFormat kFormat, int kHeads>
bool clusters_fit(int64_t clusters, int64_t blocks_of_cluster) {
  constexpr size_t kShared = sizeof(few_heads::Shared<kFormat, kHeads, true>);
  const auto kernel = few_heads_kernel<kFormat, kHeads, true, true>;
  allow_shared_bytes(kernel, kShared);
  allow_large_clusters(kernel);
  const LaunchConfig config({.grid = dim3(static_cast<unsigned>(clusters * blocks_of_cluster)),
                             .block = dim3(few_heads::kBlockThreads),
                             .shared_bytes = kShared,
                             .cluster = static_cast<unsigned>(blocks_of_cluster)},
                            nullptr, /*early=*/false);
  int fit = 0;
  check(cudaOccupancyMaxActiveClusters(&fit, kernel, config.get()), "cudaOccupancyMaxActiveClusters");
  return fit >= clusters;
}

template <KvFormat kFormat, int kHeads>
void launch_in_clusters(const DecodeArgs& args, int64_t num_tokens, const ExecutionContext& context) {
  const int64_t clusters = num_tokens * ((args.num_heads + kHeads - 1) / kHeads);
  const dim3 grid(static_cast<unsigned>(clusters * args.num_splits));
  const auto blocks = static_cast<unsigned>(args.num_splits);
  if constexpr (kHeads == kHeadTile) {
    launch_decode(sparse_decode_kernel<kFormat, true, true>, kThreads, sizeof(SharedMemory<kFormat, kHeads>), args, grid, context, blocks);
  } else {
    const auto kernel = few_heads_kernel<kFormat, kHeads, true, true>;
    if (blocks > kPortableCluster) allow_large_clusters(kernel);
    launch_decode(kernel, few_heads::kBlockThreads, sizeof(few_heads::Shared<kFormat, kHeads, true>), args, grid, context, blocks);
  }
}

}  // namespace strata::cuda::sparse_decode
