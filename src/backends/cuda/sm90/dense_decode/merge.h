// Merges the parts of tokens that dense decode cut.
#pragma once

#include "backends/cuda/sm90/dense_decode/problem.cuh"
#include "strata/op.h"

namespace strata::cuda::dense_decode {

// batch_invariant: the order of a sum must not depend on how many parts other tokens have.
void launch_merge(const DenseArgs& args, bool batch_invariant, const ExecutionContext& context);

}  // namespace strata::cuda::dense_decode
