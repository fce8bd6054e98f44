// Launches of the kernel for dense decode. Each is instantiated in its own file.
#pragma once

#include "backends/cuda/dense_attn_decode/sm90/problem.cuh"
#include "strata/op.h"

namespace strata::cuda::dense_decode {

// Whether CTAs follow a schedule or plan for themselves.
enum class Shares : uint8_t { by_lengths, by_schedule };

// kQuantized, kCombinesInCluster: as in WorkRangeProblem.
template <bool kQuantized, bool kCombinesInCluster, Shares kShares>
void launch_work_ranges(const WorkRangeArgs& args, const ExecutionContext& context);
template <bool kQuantized>
void launch_invariant(const InvariantArgs& args, int blocks, const ExecutionContext& context);

}  // namespace strata::cuda::dense_decode
