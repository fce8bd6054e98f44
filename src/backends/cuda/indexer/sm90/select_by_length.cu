// Launch of the selection of few rows with long bounds.
#include "backends/cuda/indexer/sm90/select_by_length.h"

#include "backends/cuda/indexer/sm90/select_by_length.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/launch_config.h"

namespace strata::cuda {

bool sm90::by_length_suits(bool whole_quads, bool maxima, int64_t num_tokens, int64_t columns, int num_sms) {
  return whole_quads && num_tokens <= num_sms && (maxima || columns <= held_entries(num_tokens, columns, num_sms));
}

void sm90::launch_select_by_length(const SelectArgs& args, int64_t num_tokens, int64_t columns, const ExecutionContext& context) {
  const int blocks = row_blocks(num_tokens, columns, capabilities(context.device).num_sms);
  constexpr auto kKernel = topk_select_by_length_kernel;
  constexpr size_t kSharedBytes = sizeof(ByLengthShared);
  allow_shared_bytes(kKernel, kSharedBytes);
  all_shared_memory(kKernel);
  // The preceding kernel (usually the logits) may still run while the CTAs of this one start.
  const LaunchConfig config({.grid = dim3(static_cast<unsigned>(num_tokens * blocks)),
                             .block = dim3(kByLengthThreads),
                             .shared_bytes = kSharedBytes,
                             .cluster = static_cast<unsigned>(blocks)},
                            native(context.stream), /*early=*/true);
  check(cudaLaunchKernelEx(config.get(), kKernel, args), "topk_select");
}

}  // namespace strata::cuda
