// The definitions behind launch.h.
#pragma once

#include <type_traits>

#include "backends/cuda/dense_attn_decode/sm90/invariant_problem.cuh"
#include "backends/cuda/dense_attn_decode/sm90/launch.h"
#include "backends/cuda/dense_attn_decode/sm90/scheduled_problem.cuh"
#include "backends/cuda/dense_attn_decode/sm90/span_problem.cuh"
#include "backends/cuda/mqa_engine/kernel.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/early_launch.cuh"

namespace strata::cuda::dense_decode {

// In clusters of two tiles of heads, which read the same rows at a time and then from the same side of L2, or as the problem has them.
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

template <bool kCodes, bool kMerges, Shares kShares>
void launch_spans(const SpanArgs& args, const ExecutionContext& context) {
  using Problem = std::conditional_t<kShares == Shares::by_schedule, ScheduledProblem<kCodes, kMerges>, SpanProblem<kCodes, kMerges>>;
  launch_problem<Problem>(args, args.num_spans * args.gang, kMerges || args.gang % 2 == 0, context);
}

template <bool kCodes>
void launch_invariant(const InvariantArgs& args, int blocks, const ExecutionContext& context) {
  launch_problem<InvariantProblem<kCodes>>(args, blocks, args.head_tiles == 2, context);
}

}  // namespace strata::cuda::dense_decode
