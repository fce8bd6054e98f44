// The definition of launch.h for the persistent kernel.
#pragma once

#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_persistent.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/launch.h"

namespace strata::cuda::sparse_decode {

template <int kHeads>
void launch_persistent(const DecodeArgs& args, int64_t num_tokens, int64_t blocks, const ExecutionContext& context) {
  constexpr auto kernel = few_heads_persistent_kernel<kHeads>;
  constexpr size_t kSharedBytes = sizeof(few_heads::Shared<KvFormat::fp8_ds_mla_v4, kHeads, false, true>);
  allow_shared_bytes(kernel, kSharedBytes);
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(few_heads::kBlockThreads), .shared_bytes = kSharedBytes};
  const int64_t items = num_tokens * ((args.num_heads + kHeads - 1) / kHeads);
  launch_early("few_heads_persistent_kernel", kernel, shape, context, args, static_cast<int32_t>(items));
}

}  // namespace strata::cuda::sparse_decode
