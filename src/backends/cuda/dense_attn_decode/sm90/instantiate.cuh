// The definitions of launch.h.
#pragma once

#include <type_traits>

#include "backends/cuda/dense_attn_decode/sm90/invariant_problem.cuh"
#include "backends/cuda/dense_attn_decode/sm90/launch.h"
#include "backends/cuda/dense_attn_decode/sm90/scheduled_problem.cuh"
#include "backends/cuda/dense_attn_decode/sm90/work_range_problem.cuh"
#include "backends/cuda/mqa_engine/kernel.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/early_launch.cuh"

namespace strata::cuda::dense_decode {

// In clusters of two tiles of heads, which read the same rows at the same time and so from the same side of L2; or as the problem requires.
template <class Problem>
void launch_problem(const typename Problem::Args& args, int blocks, bool in_pairs, const ExecutionContext& context) {
  constexpr auto kernel = sparse_prefill::row_tiles_kernel<Problem>;
  constexpr int kSharedBytes = sparse_prefill::shared_bytes<Problem>();
  allow_shared_bytes(kernel, kSharedBytes);
  launch_early("row_tiles_kernel", kernel,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(sparse_prefill::kThreads),
                .shared_bytes = kSharedBytes,
                .cluster = in_pairs ? 2u : 1u},
               context, args);
}

template <bool kQuantized, bool kCombinesInCluster, Shares kShares>
void launch_work_ranges(const WorkRangeArgs& args, const ExecutionContext& context) {
  using Problem = std::conditional_t<kShares == Shares::by_schedule, ScheduledProblem<kQuantized, kCombinesInCluster>,
                                     WorkRangeProblem<kQuantized, kCombinesInCluster>>;
  launch_problem<Problem>(args, args.num_work_ranges * args.gang, kCombinesInCluster || args.gang % 2 == 0, context);
}

template <bool kQuantized>
void launch_invariant(const InvariantArgs& args, int blocks, const ExecutionContext& context) {
  launch_problem<InvariantProblem<kQuantized>>(args, blocks, args.head_tiles == 2, context);
}

}  // namespace strata::cuda::dense_decode
