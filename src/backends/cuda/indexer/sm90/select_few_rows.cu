// Launch of the selection of a few short rows.
#include "backends/cuda/indexer/sm90/select_few_rows.h"

#include "backends/cuda/indexer/sm90/select_few_rows.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/launch_config.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 512, kQuads = 4, kMaxQuads = 8;
constexpr int64_t max_columns(int quads) { return int64_t{4} * quads * kThreads; }

template <int kOfThread>
void launch(const SelectArgs& args, int64_t num_tokens, const ExecutionContext& context) {
  constexpr auto kKernel = sm90::topk_select_few_rows_kernel<kThreads, kOfThread>;
  constexpr size_t kSharedBytes = sizeof(sm90::FewRowsShared<kThreads>);
  allow_shared_bytes(kKernel, kSharedBytes);
  all_shared_memory(kKernel);
  launch_early("topk_select", kKernel,
               {.grid = dim3(static_cast<unsigned>(num_tokens)), .block = dim3(kThreads), .shared_bytes = kSharedBytes}, context, args);
}

}  // namespace

bool sm90::few_rows_fit(bool whole_quads, int64_t columns) { return whole_quads && columns <= max_columns(kMaxQuads); }

void sm90::launch_select_few_rows(const SelectArgs& args, int64_t num_tokens, int64_t columns, const ExecutionContext& context) {
  columns <= max_columns(kQuads) ? launch<kQuads>(args, num_tokens, context) : launch<kMaxQuads>(args, num_tokens, context);
}

}  // namespace strata::cuda
