// The CTAs of a call follow a schedule (schedule.h) instead of planning. The schedule, query_start_loc and seq_lens do not change while the
// preceding kernel still runs.
#pragma once

#include "backends/cuda/dense_attn_decode/sm90/work_range_problem.cuh"

namespace strata::cuda::dense_decode {

template <bool kE4m3, bool kCombinesInCluster>
struct ScheduledProblem : WorkRangeProblem<kE4m3, kCombinesInCluster> {
  using Base = WorkRangeProblem<kE4m3, kCombinesInCluster>;
  using typename Base::Args;
  using typename Base::Shared;

  static __device__ __forceinline__ void start(const Args& a, Shared& shared) {
    Plan& plan = shared.plan;
    const typename Base::CtaWork work(a);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    // A thread loads the sequence of its own index before it is known which sequences are in the range.
    const bool by_number = a.num_sequences <= sparse_prefill::kThreads;
    Sequence own{};
    if (by_number && thread < a.num_sequences) own = a.sequence(thread);
    const ScheduledWorkRange work_range(a.schedule, work.work_range);
    if (thread == 0) {
      plan.work_range = work.work_range, plan.gang_tile = work.gang_tile;
      plan.begin = work_range.begin, plan.end = work_range.end;
      plan.combines = kCombinesInCluster && work_range.is_neighbours;
      plan.splits = plan.combines ? 0 : work_range.splits;
    }
    const int32_t first = work_range.begin.sequence, kept = by_number ? thread - first : thread;
    if (kept >= 0 && kept < kKept && first + kept < sequence_after(work_range.end))
      plan.kept[kept] = by_number ? own : a.sequence(first + kept);
    __syncthreads();
    // The next kernel's CTAs are scheduled when these end, where they need not wait for a combine kernel.
    if (work_range.to_combine(kCombinesInCluster) == 0) ptx::launch_dependents();
    if (thread >= kWarpgroup && thread < 3 * kWarpgroup) Base::prefetch(a, plan);
    ptx::wait_for_previous_kernel();
    Base::publish_splits(a, plan);
  }
};

}  // namespace strata::cuda::dense_decode
