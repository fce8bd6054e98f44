// The definitions of launch.h.
#pragma once

#include "backends/cuda/mqa_engine/kernel.cuh"
#include "backends/cuda/mqa_engine/launch.h"
#include "backends/cuda/mqa_engine/split_problem.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/launch_config.h"

namespace strata::cuda::sparse_prefill {

template <class Problem>
void launch_roles(const typename Problem::Args& args, int blocks, const ExecutionContext& context) {
  constexpr auto kernel = row_tiles_kernel<Problem>;
  constexpr int kSharedBytes = shared_bytes<Problem>();
  allow_shared_bytes(kernel, kSharedBytes);
  const LaunchConfig config({.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads), .shared_bytes = kSharedBytes},
                            native(context.stream), Problem::kStartsEarly && launches_early(context.device));
  check(cudaLaunchKernelEx(config.get(), kernel, args), "row_tiles_kernel");
}

template <class Source, int kDim, bool kTwoHeadTiles>
void launch_tokens(const WholeArgs<Source>& args, int blocks, const ExecutionContext& context) {
  launch_roles<PrefillProblem<Source, kDim, kTwoHeadTiles>>(args, blocks, context);
}

template <class Source, int kDim>
void launch_splits(const SplitArgs<Source>& args, int blocks, const ExecutionContext& context) {
  launch_roles<SplitProblem<Source, kDim>>(args, blocks, context);
}

}  // namespace strata::cuda::sparse_prefill
