// Launch of the top-k kernels: one row with candidates by select_candidates.cuh, few short rows by select_few_rows.cuh, few of long bounds
// by select_by_length.cuh, rows that registers hold by select_held.cuh, longer ones by select.cuh.
#include <algorithm>

#include "backends/cuda/indexer/select_slots.cuh"
#include "backends/cuda/indexer/sm90/indexer.h"
#include "backends/cuda/indexer/sm90/select_by_length.h"
#include "backends/cuda/indexer/sm90/select_candidates.cuh"
#include "backends/cuda/indexer/sm90/select_few_rows.h"
#include "backends/cuda/indexer/sm90/select_held.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/launch_config.h"

namespace strata::cuda {
namespace {

template <int kThreads>
__global__ void __launch_bounds__(kThreads, kSelectBlocks<kThreads>) topk_select_kernel(const __grid_constant__ SelectArgs a) {
  __shared__ SelectShared<kThreads> shared;
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  select_row(shared, a, blockIdx.x);
  write_slots(a, blockIdx.x, a.lengths[blockIdx.x]);
}

struct Plan {
  void (*kernel)(SelectArgs);
  int threads;
  int shared_bytes = 0;  // dynamic
  int cluster = 1;       // blocks of a row
};

// Blocks of a row: a power of two, or 0 where the largest cluster does not hold it.
template <int kThreads>
int cluster_for(const SelectArgs& a, int64_t columns) {
  int size = 1;
  while (size < sm90::kHeldMaxCluster && columns > int64_t{size} * sm90::kHeldEntries<kThreads>) size *= 2;
  return a.aligned && columns <= int64_t{size} * sm90::kHeldEntries<kThreads> ? size : 0;
}
template <int kThreads, bool kCluster>
Plan held(int cluster = 1) {
  return {sm90::topk_select_held_kernel<kThreads, kCluster>, kThreads, static_cast<int>(sizeof(sm90::HeldShared<kThreads, kCluster>)),
          cluster};
}

// Where not all rows run at once more threads may leave less of the last rows' time.
int pass_threads(const TopkSelectParams& p, int num_sms) {
  const int threads = select_threads(p, num_sms);
  const auto waves = [&](int blocks) { return (p.lengths.shape[0] + blocks * num_sms - 1) / (blocks * num_sms); };
  return threads == 128 && waves(kSelectBlocks<256>) < 2 * waves(kSelectBlocks<128>) && waves(kSelectBlocks<128>) > 1 ? 256 : threads;
}
Plan in_passes(int threads) {
  return {threads == 512 ? topk_select_kernel<512> : threads == 256 ? topk_select_kernel<256> : topk_select_kernel<128>, threads};
}

// Few rows must be quick: a long one has several SMs. Blocks of 256 threads fit beside those of the logits kernel for few tokens, so that
// they have begun when it ends. 0: rows are too long, or too many.
int cluster_for_few(const SelectArgs& a, int64_t num_tokens, int64_t columns, int num_sms) {
  const int size = cluster_for<256>(a, columns);
  return num_tokens * size <= num_sms ? size : 0;
}

// More rows: the fewest threads that hold one, and for many long rows small blocks that hold none.
Plan plan(const SelectArgs& a, const TopkSelectParams& p, int num_sms) {
  const int64_t num_tokens = p.lengths.shape[0], columns = p.logits.present() ? p.logits.shape[1] : 0;
  const int few = cluster_for_few(a, num_tokens, columns, num_sms), small = cluster_for<256>(a, columns),
            large = cluster_for<1024>(a, columns);
  if (few > 0) return few == 1 ? held<256, false>() : held<256, true>(few);
  if (cluster_for<128>(a, columns) == 1) return held<128, false>();
  if (small == 1) return held<256, false>();
  if (cluster_for<512>(a, columns) == 1) return held<512, false>();
  if (large == 1 && num_tokens <= 8 * num_sms) return held<1024, false>();
  if (large > 1 && num_tokens <= 2 * num_sms) return held<1024, true>(large);
  return in_passes(pass_threads(p, num_sms));
}

void select_candidates(const SelectArgs& args, int64_t columns, const sm90::Candidates& candidates, const ExecutionContext& context) {
  constexpr auto kKernel = sm90::topk_select_candidates_kernel<sm90::kCandidateQuads>;
  allow_shared_bytes(kKernel, sm90::select_candidates_bytes(sm90::kCandidatesMaxRows));
  all_shared_memory(kKernel);
  launch_early("topk_select", kKernel,
               {.grid = 1, .block = sm90::kCandidatesThreads, .shared_bytes = sm90::select_candidates_bytes(columns)}, context, args,
               candidates);
}

}  // namespace

void sm90::launch_topk_select(const TopkSelectParams& p, const SelectHints& hints, const ExecutionContext& context) {
  const int64_t num_tokens = p.lengths.shape[0];
  if (num_tokens == 0) return;
  const SelectArgs args = select_args(p, hints);
  const int num_sms = capabilities(context.device).num_sms;
  if (p.logits.present()) {
    const int64_t columns = p.logits.shape[1];
    if (hints.notes.present() && notes_of(num_tokens, columns, args.k, num_sms) == Notes::candidates)
      return select_candidates(args, columns, candidates_in(hints.notes.ptr<float>(), num_sms), context);
    if (few_rows_fit(args, num_tokens, columns, num_sms)) return launch_select_few_rows(args, num_tokens, columns, context);
    if (cluster_for_few(args, num_tokens, columns, num_sms) == 0 && by_length_suits(args, num_tokens, columns, num_sms))
      return launch_select_by_length(args, num_tokens, columns, context);
  }
  const Plan chosen = plan(args, p, num_sms);
  allow_shared_bytes(chosen.kernel, static_cast<size_t>(chosen.shared_bytes));
  all_shared_memory(chosen.kernel);
  // The kernel in front (the logits, usually) may still run while the blocks of this one start.
  const LaunchConfig config({.grid = dim3(static_cast<unsigned>(num_tokens * chosen.cluster)),
                             .block = dim3(static_cast<unsigned>(chosen.threads)),
                             .shared_bytes = static_cast<size_t>(chosen.shared_bytes),
                             .cluster = static_cast<unsigned>(chosen.cluster)},
                            native(context.stream), /*early=*/true);
  check(cudaLaunchKernelEx(config.get(), chosen.kernel, args), "topk_select");
}

}  // namespace strata::cuda
