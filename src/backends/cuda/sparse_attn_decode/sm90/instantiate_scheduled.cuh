// The definition of launch.h for the work items of a schedule.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/instantiate.cuh"

namespace strata::cuda::sparse_decode {

template <int kHeads>
void launch_scheduled(const DecodeArgs& args, int64_t num_work_items, const ExecutionContext& context) {
  constexpr KvFormat kFormat = KvFormat::fp8_ds_mla_v4;
  const dim3 grid(static_cast<unsigned>(num_work_items * ((args.num_heads + kHeads - 1) / kHeads)));
  if constexpr (kHeads == kHeadTile) {
    launch_decode(sparse_decode_kernel<kFormat, Cut::scheduled>, kThreads, sizeof(SharedMemory<kFormat, kHeads>), args, grid, context);
  } else {
    launch_decode(few_heads_kernel<kFormat, kHeads, Cut::scheduled>, few_heads::kBlockThreads, sizeof(few_heads::Shared<kFormat, kHeads>),
                  args, grid, context);
  }
}

}  // namespace strata::cuda::sparse_decode
