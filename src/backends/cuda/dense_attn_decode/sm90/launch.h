// Launches of the kernel for dense decode; each is instantiated in a file of its own.
#pragma once

#include "backends/cuda/dense_attn_decode/sm90/problem.cuh"
#include "strata/op.h"

namespace strata::cuda::dense_decode {

// Whether blocks go by a schedule or make a plan themselves.
enum class Shares : uint8_t { by_lengths, by_schedule };

// kCodes, kMerges: of SpanProblem.
template <bool kCodes, bool kMerges, Shares kShares>
void launch_spans(const SpanArgs& args, const ExecutionContext& context);
template <bool kCodes>
void launch_invariant(const InvariantArgs& args, int blocks, const ExecutionContext& context);

}  // namespace strata::cuda::dense_decode
