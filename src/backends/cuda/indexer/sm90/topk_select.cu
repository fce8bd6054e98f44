// Launch of the top-k kernels, and the selection of one for a call (indexer.h).
#include <algorithm>
#include <optional>

#include "backends/cuda/device/rows.cuh"
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
  int cluster = 1;       // CTAs per row
};

// What selecting a kernel depends on.
struct RowShape {
  int64_t num_tokens, columns;
  bool present;      // there are logits
  bool aligned;      // every row is 16-byte aligned
  bool whole_quads;  // and can be read in quads to its end
  bool maxima;       // the maxima of every kMaximaRows logits are known
  int num_sms;
};

// CTAs per row: a power of two, or 0 where the largest cluster does not hold the row.
template <int kThreads>
int cluster_for(const RowShape& r) {
  int size = 1;
  while (size < sm90::kHeldMaxCluster && r.columns > int64_t{size} * sm90::kHeldEntries<kThreads>) size *= 2;
  return r.aligned && r.columns <= int64_t{size} * sm90::kHeldEntries<kThreads> ? size : 0;
}
template <int kThreads, bool kCluster>
Plan held(int cluster = 1) {
  return {sm90::topk_select_held_kernel<kThreads, kCluster>, kThreads, static_cast<int>(sizeof(sm90::HeldShared<kThreads, kCluster>)),
          cluster};
}

// Where not all rows run at once, more threads may shorten the last rows.
int pass_threads(const TopkSelectParams& p, int num_sms) {
  const int threads = select_threads(p, num_sms);
  const auto waves = [&](int blocks) { return (p.lengths.shape[0] + blocks * num_sms - 1) / (blocks * num_sms); };
  return threads == 128 && waves(kSelectBlocks<256>) < 2 * waves(kSelectBlocks<128>) && waves(kSelectBlocks<128>) > 1 ? 256 : threads;
}
Plan in_passes(int threads) {
  return {threads == 512 ? topk_select_kernel<512> : threads == 256 ? topk_select_kernel<256> : topk_select_kernel<128>, threads};
}

// Few rows must be quick: a long one uses several SMs. CTAs of 256 threads fit on an SM with those of the logits kernel for few tokens, so
// that they have started when it ends. 0: rows are too long, or too many.
int cluster_for_few(const RowShape& r) {
  const int size = cluster_for<256>(r);
  return r.num_tokens * size <= r.num_sms ? size : 0;
}

// More rows: the fewest threads that hold one. Absent for many long rows, which small CTAs that hold none select as fast.
std::optional<Plan> held_plan(const RowShape& r) {
  const int few = cluster_for_few(r), small = cluster_for<256>(r), large = cluster_for<1024>(r);
  if (few > 0) return few == 1 ? held<256, false>() : held<256, true>(few);
  if (cluster_for<128>(r) == 1) return held<128, false>();
  if (small == 1) return held<256, false>();
  if (cluster_for<512>(r) == 1) return held<512, false>();
  if (large == 1 && r.num_tokens <= 8 * r.num_sms) return held<1024, false>();
  if (large > 1 && r.num_tokens <= 2 * r.num_sms) return held<1024, true>(large);
  return std::nullopt;
}

sm90::SelectKernel kernel_of(const RowShape& r, Notes notes) {
  using sm90::SelectKernel;
  if (r.present) {
    if (notes == Notes::candidates) return SelectKernel::candidates;
    if (r.num_tokens <= r.num_sms && sm90::few_rows_fit(r.whole_quads, r.columns)) return SelectKernel::few_rows;
    if (cluster_for_few(r) == 0 && sm90::by_length_suits(r.whole_quads, r.maxima, r.num_tokens, r.columns, r.num_sms))
      return SelectKernel::by_length;
  }
  return held_plan(r) ? SelectKernel::held : SelectKernel::passes;
}

void select_candidates(const SelectArgs& args, int64_t columns, const sm90::Candidates& candidates, const ExecutionContext& context) {
  constexpr auto kKernel = sm90::topk_select_candidates_kernel<sm90::kCandidateQuads>;
  allow_shared_bytes(kKernel, sm90::select_candidates_bytes(sm90::kCandidatesMaxRows));
  all_shared_memory(kKernel);
  launch_early("topk_select", kKernel,
               {.grid = 1, .block = sm90::kCandidatesThreads, .shared_bytes = sm90::select_candidates_bytes(columns)}, context, args,
               candidates);
}

void launch_plan(const Plan& plan, const SelectArgs& args, int64_t num_tokens, const ExecutionContext& context) {
  allow_shared_bytes(plan.kernel, static_cast<size_t>(plan.shared_bytes));
  all_shared_memory(plan.kernel);
  // The preceding kernel (the logits, usually) may still run while the blocks of this one start.
  const LaunchConfig config({.grid = dim3(static_cast<unsigned>(num_tokens * plan.cluster)),
                             .block = dim3(static_cast<unsigned>(plan.threads)),
                             .shared_bytes = static_cast<size_t>(plan.shared_bytes),
                             .cluster = static_cast<unsigned>(plan.cluster)},
                            native(context.stream), /*early=*/true);
  check(cudaLaunchKernelEx(config.get(), plan.kernel, args), "topk_select");
}

void launch(sm90::SelectKernel kernel, const RowShape& rows, const TopkSelectParams& p, const SelectArgs& args,
            const ExecutionContext& context, float* notes) {
  using sm90::SelectKernel;
  switch (kernel) {
    case SelectKernel::candidates: return select_candidates(args, rows.columns, sm90::candidates_in(notes, rows.num_sms), context);
    case SelectKernel::few_rows: return sm90::launch_select_few_rows(args, rows.num_tokens, rows.columns, context);
    case SelectKernel::by_length: return sm90::launch_select_by_length(args, rows.num_tokens, rows.columns, context);
    case SelectKernel::held: {
      const int cluster = cluster_for<1024>(rows);
      const Plan any = cluster == 1 ? held<1024, false>() : held<1024, true>(cluster);
      return launch_plan(held_plan(rows).value_or(any), args, rows.num_tokens, context);
    }
    case SelectKernel::passes: return launch_plan(in_passes(pass_threads(p, rows.num_sms)), args, rows.num_tokens, context);
  }
}

// By strides alone.
RowShape rows_of(const TopkSelectParams& p, const Capabilities& c) {
  const bool aligned = p.logits.stride[0] % 4 == 0 || p.logits.shape[0] == 1;
  return {.num_tokens = p.lengths.shape[0],
          .columns = p.logits.shape[1],
          .present = true,
          .aligned = aligned,
          .whole_quads = aligned && p.logits.shape[1] % 4 == 0,
          .maxima = false,
          .num_sms = c.num_sms};
}

}  // namespace

auto sm90::select_kernel(const TopkSelectParams& p, const Capabilities& c) -> SelectKernel { return kernel_of(rows_of(p, c), Notes::none); }

std::string sm90::refusal(SelectKernel kernel, const TopkSelectParams& p, const Capabilities& c) {
  const RowShape r = rows_of(p, c);
  switch (kernel) {
    case SelectKernel::candidates: return "needs what indexer_topk leaves";
    case SelectKernel::few_rows:
      return few_rows_fit(r.whole_quads, r.columns) ? "" : "needs rows of at most 16384 logits, at multiples of 16 bytes and to them";
    case SelectKernel::by_length:
      return by_length_suits(r.whole_quads, /*maxima=*/false, r.num_tokens, r.columns, r.num_sms)
                 ? ""
                 : "needs rows at multiples of 16 bytes, and to them, that the registers of a cluster hold, no more of them than SMs";
    case SelectKernel::held:
      return cluster_for<1024>(r) > 0 ? "" : "needs rows at multiples of 16 bytes that the registers of a cluster hold";
    case SelectKernel::passes: break;
  }
  return {};
}

void sm90::launch_topk_select(SelectKernel kernel, const TopkSelectParams& p, const ExecutionContext& context) {
  if (p.lengths.shape[0] == 0) return;
  // The address was not known when the kernel was selected.
  if (!begins_aligned(p.logits.data)) kernel = SelectKernel::passes;
  launch(kernel, rows_of(p, capabilities(context.device)), p, select_args(p, {}), context, nullptr);
}

void sm90::launch_topk_select(const TopkSelectParams& p, const SelectHints& hints, const ExecutionContext& context) {
  const int64_t num_tokens = p.lengths.shape[0];
  if (num_tokens == 0) return;
  const SelectArgs args = select_args(p, hints);
  const int num_sms = capabilities(context.device).num_sms;
  const int64_t columns = p.logits.present() ? p.logits.shape[1] : 0;
  const RowShape rows{.num_tokens = num_tokens,
                      .columns = columns,
                      .present = p.logits.present(),
                      .aligned = args.aligned,
                      .whole_quads = has_whole_quads(args, columns),
                      .maxima = args.maxima != nullptr,
                      .num_sms = num_sms};
  launch(kernel_of(rows, hints.notes.present() ? hints.kind : Notes::none), rows, p, args, context, hints.notes.ptr<float>());
}

}  // namespace strata::cuda
