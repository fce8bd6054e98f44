// The blocks of a call go by a schedule (schedule.h) instead of making a plan: what it, query_start_loc and seq_lens say does not change
// while the kernel in front still runs.
#pragma once

#include "backends/cuda/dense_attn_decode/sm90/span_problem.cuh"

namespace strata::cuda::dense_decode {

template <bool kOfCodes, bool kMerges>
struct ScheduledProblem : SpanProblem<kOfCodes, kMerges> {
  using Base = SpanProblem<kOfCodes, kMerges>;
  using typename Base::Args;
  using typename Base::Shared;

  static __device__ __forceinline__ void start(const Args& a, Shared& shared) {
    Plan& plan = shared.plan;
    const typename Base::Seat seat(a);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    // A thread asks for a sequence of its number before it is known which ones are the span's.
    const bool by_number = a.num_sequences <= sparse_prefill::kThreads;
    Sequence own{};
    if (by_number && thread < a.num_sequences) own = a.sequence(thread);
    const ScheduledSpan span(a.schedule, seat.span);
    if (thread == 0) {
      plan.span = seat.span, plan.gang_tile = seat.gang_tile;
      plan.begin = span.begin, plan.end = span.end;
      plan.merges = kMerges && span.is_neighbours;
      plan.parts = plan.merges ? 0 : span.parts;
    }
    const int32_t first = span.begin.sequence, kept = by_number ? thread - first : thread;
    if (kept >= 0 && kept < kKept && first + kept < behind(span.end)) plan.kept[kept] = by_number ? own : a.sequence(first + kept);
    __syncthreads();
    // Blocks behind this kernel find room when these end, where they need not wait for a merge.
    if (span.to_merge(kMerges) == 0) ptx::launch_dependents();
    if (thread >= kWarpgroup && thread < 3 * kWarpgroup) Base::bring_near(a, plan);
    ptx::wait_for_previous_kernel();
    Base::tell_merge(a, plan);
  }
};

}  // namespace strata::cuda::dense_decode
