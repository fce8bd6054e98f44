// The definition of launch_decode of launch.h; those for clusters and schedules are in files of their own.
#pragma once

#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/kernel.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/launch.h"

namespace strata::cuda::sparse_decode {

template <class... Params>
void launch_decode(void (*kernel)(Params...), int threads, size_t shared_bytes, const DecodeArgs& args, dim3 grid,
                   const ExecutionContext& context, unsigned cluster = 1) {
  allow_shared_bytes(kernel, shared_bytes);
  launch_early("sparse_decode_kernel", kernel,
               {.grid = grid, .block = dim3(static_cast<unsigned>(threads)), .shared_bytes = shared_bytes, .cluster = cluster}, context,
               args);
}

template <KvFormat kFormat, int kHeads>
void launch_decode(const DecodeArgs& args, int64_t num_tokens, const ExecutionContext& context) {
  const int64_t head_tiles = (args.num_heads + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(num_tokens * head_tiles), static_cast<unsigned>(args.num_splits));
  if constexpr (kHeads == kHeadTile) {
    launch_decode(sparse_decode_kernel<kFormat, Cut::even>, kThreads, sizeof(SharedMemory<kFormat, kHeads>), args, grid, context);
  } else {
    launch_decode(few_heads_kernel<kFormat, kHeads, Cut::even>, few_heads::kBlockThreads, sizeof(few_heads::Shared<kFormat, kHeads>), args,
                  grid, context);
  }
}

}  // namespace strata::cuda::sparse_decode
