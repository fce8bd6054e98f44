// Launch of the top-k kernels: rows that registers hold by select_held.cuh, longer ones by select.cuh.
#include <algorithm>

#include "backends/cuda/common/check.h"
#include "backends/cuda/sm90/indexer/indexer.h"
#include "backends/cuda/sm90/indexer/select_held.cuh"
#include "backends/cuda/smxx/indexer/select.cuh"

namespace strata::cuda {
namespace {

template <int kThreads>
__global__ void __launch_bounds__(kThreads, kSelectBlocks<kThreads>) topk_select_kernel(const SelectArgs a) {
  __shared__ SelectShared<kThreads> shared;
  ptx::wait_for_previous_kernel();
  select_row(shared, a, blockIdx.x);
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
  using Shape = sm90::HeldShape<kThreads>;
  int size = 1;
  while (size < Shape::kMaxCluster && (columns > int64_t{size} * Shape::kEntries || a.k > size * Shape::kMaxK)) size *= 2;
  const bool held = columns <= int64_t{size} * Shape::kEntries && a.k <= std::min(size * Shape::kMaxK, Shape::kList / 2);
  return a.aligned && held ? size : 0;
}
template <int kThreads, bool kCluster>
Plan held(int cluster = 1) {
  return {sm90::topk_select_held_kernel<kThreads, kCluster>, kThreads, static_cast<int>(sizeof(sm90::HeldShared<kThreads>)), cluster};
}

// Few rows must be quick: a long one has several SMs. Blocks of 256 threads fit beside those of the logits kernel for few tokens, so that
// they have begun when it ends. More rows: the fewest threads that hold one, and for very many long rows many small blocks that hold none.
Plan plan(const SelectArgs& a, const TopkSelectParams& p, int num_sms) {
  const int64_t num_tokens = p.lengths.shape[0], columns = p.logits.present() ? p.logits.shape[1] : 0;
  const int small = cluster_for<256>(a, columns), large = cluster_for<1024>(a, columns);
  if (small > 0 && num_tokens * small <= num_sms) return small == 1 ? held<256, false>() : held<256, true>(small);
  if (cluster_for<128>(a, columns) == 1) return held<128, false>();
  if (small == 1) return held<256, false>();
  if (cluster_for<512>(a, columns) == 1) return held<512, false>();
  if (large > 0 && num_tokens <= 8 * num_sms) return large == 1 ? held<1024, false>() : held<1024, true>(large);
  const int threads = select_threads(p, num_sms);
  return {threads == 512 ? topk_select_kernel<512> : threads == 256 ? topk_select_kernel<256> : topk_select_kernel<128>, threads};
}

}  // namespace

void sm90::launch_topk_select(const TopkSelectParams& p, bool behind_logits, const ExecutionContext& context) {
  const int64_t num_tokens = p.lengths.shape[0];
  if (num_tokens == 0) return;
  SelectArgs args = select_args(p);
  args.behind_logits = behind_logits;
  const Plan chosen = plan(args, p, capabilities(context.device).num_sms);
  // The kernel in front (the logits, usually) may still run while the blocks of this one start.
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(chosen.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_tokens * chosen.cluster));
  config.blockDim = dim3(static_cast<unsigned>(chosen.threads));
  config.dynamicSmemBytes = static_cast<size_t>(chosen.shared_bytes);
  config.stream = native(context.stream);
  config.attrs = attributes;
  config.numAttrs = chosen.cluster > 1 ? 2 : 1;
  check(cudaFuncSetAttribute(chosen.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, chosen.shared_bytes), "cudaFuncSetAttribute");
  check(cudaFuncSetAttribute(chosen.kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "cudaFuncSetAttribute");
  check(cudaLaunchKernelEx(&config, chosen.kernel, args), "topk_select");
}

}  // namespace strata::cuda
