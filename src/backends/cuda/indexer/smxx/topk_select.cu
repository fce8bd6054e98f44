// Top-k of rows of logits with one CTA per row. The algorithm and its floor: select.cuh.
#include "backends/cuda/indexer/indexer.h"
#include "backends/cuda/indexer/select.cuh"
#include "backends/cuda/indexer/select_slots.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda {
namespace {

template <int kThreads>
__global__ void __launch_bounds__(kThreads, kSelectBlocks<kThreads>) topk_select_kernel(const __grid_constant__ SelectArgs a) {
  __shared__ SelectShared<kThreads> shared;
  select_row(shared, a, blockIdx.x);
  write_slots(a, blockIdx.x, a.lengths[blockIdx.x]);
}

}  // namespace

void smxx::launch_topk_select(const TopkSelectParams& p, const SelectHints& hints, const ExecutionContext& context) {
  const int64_t num_tokens = p.lengths.shape[0];
  if (num_tokens == 0) return;
  const int threads = select_threads(p, capabilities(context.device).num_sms);
  const auto kernel = threads == 512 ? topk_select_kernel<512> : threads == 256 ? topk_select_kernel<256> : topk_select_kernel<128>;
  kernel<<<static_cast<unsigned>(num_tokens), threads, 0, native(context.stream)>>>(select_args(p, hints));
  check_launch("topk_select");
}

}  // namespace strata::cuda
