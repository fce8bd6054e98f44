// The definition behind launch.h.
#pragma once

#include "backends/cuda/common/check.h"
#include "backends/cuda/common/early_launch.cuh"
#include "backends/cuda/sm90/dense_decode/launch.h"
#include "backends/cuda/sm90/sparse_prefill/kernel.cuh"

namespace strata::cuda::dense_decode {

// In clusters: the two parts of a token, which its blocks merge, or its two tiles of heads, which then read the same rows at a time and
// from the same side of L2.
template <bool kCodes, bool kMerges>
void launch(const DenseArgs& args, int blocks, const ExecutionContext& context) {
  using Problem = DenseProblem<kCodes, kMerges>;
  constexpr auto kernel = sparse_prefill::row_tiles_kernel<Problem>;
  constexpr int kSharedBytes = sparse_prefill::shared_bytes<Problem>();
  allow_shared_bytes(kernel, kSharedBytes);
  launch_early("row_tiles_kernel", kernel,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(sparse_prefill::kThreads),
                .shared_bytes = kSharedBytes,
                .cluster = kMerges || args.head_tiles == 2 ? 2u : 1u},
               context, args);
}

}  // namespace strata::cuda::dense_decode
