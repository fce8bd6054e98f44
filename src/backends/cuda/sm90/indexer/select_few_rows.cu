// Launch of the selection of a few short rows.
#include "backends/cuda/sm90/indexer/select_few_rows.h"

#include "backends/cuda/common/early_launch.cuh"
#include "backends/cuda/common/launch_config.h"
#include "backends/cuda/sm90/indexer/select_few_rows.cuh"

namespace strata::cuda {
namespace {

constexpr int kThreads = 512, kQuads = 4;  // 64 registers each: there is room for a block beside one of the logits kernel

}  // namespace

bool sm90::few_rows_fit(const SelectArgs& a, int64_t num_tokens, int64_t columns, int num_sms) {
  const bool whole_quads = columns % 4 == 0 || a.behind_logits;  // rows of the workspace end with them
  return a.aligned && whole_quads && num_tokens <= num_sms && columns <= 4 * kQuads * kThreads;
}

void sm90::launch_select_few_rows(const SelectArgs& args, int64_t num_tokens, const ExecutionContext& context) {
  constexpr auto kKernel = topk_select_few_rows_kernel<kThreads, kQuads>;
  constexpr size_t kSharedBytes = sizeof(FewRowsShared<kThreads>);
  allow_shared_bytes(kKernel, kSharedBytes);
  all_shared_memory(kKernel);
  launch_early("topk_select", kKernel,
               {.grid = dim3(static_cast<unsigned>(num_tokens)), .block = dim3(kThreads), .shared_bytes = kSharedBytes}, context, args);
}

}  // namespace strata::cuda
