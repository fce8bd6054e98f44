#include "backends/cuda/sparse_attn_decode/sm90/planner.h"

#include <map>
#include <mutex>
#include <tuple>

#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/sparse_attn_decode/sm90/launch.h"
#include "backends/cuda/sparse_attn_decode/sm90/schedule.h"

namespace strata::cuda::sparse_decode {

struct Planner::State {
  std::mutex mutex;
  std::map<std::tuple<int, int64_t, int64_t>, int64_t> clusters;  // that run at a time, by device, heads and blocks
  // The last answers: select() asks each implementation for the same call.
  Problem problem{}, scheduled_problem{};
  int device = -1;
  Plans plans;
  int64_t scheduled_heads = -1;
};

Planner::Planner() : state_(std::make_shared<State>()) {}

Plans Planner::plans(const Problem& problem, const Device& device) const {
  const int index = device.id().index;
  const std::lock_guard lock(state_->mutex);
  if (state_->device == index && state_->problem == problem) return state_->plans;
  Plans plans = sparse_decode::plans(problem);
  const Plan& best = plans.best();
  if (plans.fastest == Kernel::few_heads_clusters && best.splits > kPortableCluster) {
    const auto [known, is_new] = state_->clusters.try_emplace({index, best.block_heads, best.splits}, 0);
    if (is_new) {
      const DeviceScope scope(index);
      known->second = best.block_heads == 8 ? allow_large_clusters<KvFormat::fp8_ds_mla_v4, 8>(best.splits)
                                            : allow_large_clusters<KvFormat::fp8_ds_mla_v4, 16>(best.splits);
    }
    if (known->second < problem.tokens * ceil_div(problem.heads, best.block_heads)) {
      Problem smaller = problem;
      smaller.largest_cluster = kPortableCluster;
      plans = sparse_decode::plans(smaller);
    }
  }
  state_->problem = problem, state_->device = index, state_->plans = plans;
  return plans;
}

int64_t Planner::scheduled_heads(const Problem& problem) const {
  const std::lock_guard lock(state_->mutex);
  if (state_->scheduled_heads < 0 || state_->scheduled_problem != problem) {
    const BlockCost* const block = problem.tokens > 0 ? block_of_schedule(problem) : nullptr;
    state_->scheduled_problem = problem, state_->scheduled_heads = block == nullptr ? 0 : block->heads;
  }
  return state_->scheduled_heads;
}

}  // namespace strata::cuda::sparse_decode
