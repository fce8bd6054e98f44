#include "plan_fit.h"

#include <algorithm>

#include "strata/error.h"

namespace strata::cli {
namespace {

// Every rank begins at a multiple of rank 1's first row. Where that is no multiple of the blocks that share a scale, other ranks than the
// first have finer blocks or bf16 values, and rank 1 has the finest.
int num_counted_ranks(const LayerOptions& options) { return std::min(options.tp_size, 2); }

// The largest n in [0, most] with holds(n), which holds up to some number and not from there on.
template <class F>
int64_t largest(int64_t most, F&& holds) {
  int64_t low = 0, high = most + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

PlanFit::PlanFit(const runner::PlannedModel& model, const LayerOptions& options)
    : model_(model), options_(options), caches_(model.cache_groups(options_)) {
  for (int rank = 0; rank < num_counted_ranks(options_); ++rank) {
    LayerOptions of_rank = options_;
    of_rank.tp_rank = rank;
    alike_.push_back(model_.alike(of_rank));
  }
}

runner::PlannedMemory PlanFit::memory(const LayerOptions& options) const {
  runner::PlannedMemory most;
  for (size_t rank = 0; rank < alike_.size(); ++rank) {
    LayerOptions of_rank = options;
    of_rank.tp_rank = static_cast<int>(rank);
    const runner::PlannedMemory memory = model_.memory(of_rank, alike_[rank]);
    if (memory.weight_bytes() + memory.workspace_bytes() > most.weight_bytes() + most.workspace_bytes()) most = memory;
  }
  return most;
}

bool PlanFit::fits(int64_t bytes, int64_t requests, int64_t context) const {
  LayerOptions options = options_;
  options.limits.max_num_batched_tokens = std::max(options.limits.max_num_batched_tokens, requests);
  options.limits.max_num_seqs = requests;
  options.limits.max_model_len = context;
  try {
    const int64_t caches = caches_.bytes(options.limits);
    if (caches > bytes) return false;
    const runner::PlannedMemory rest = memory(options);
    return rest.weight_bytes() + rest.workspace_bytes() <= bytes - caches;
  } catch (const Error&) {  // more pages or table entries than numbers of 32 bits name
    return false;
  }
}

int64_t PlanFit::most_requests(int64_t bytes, int64_t context, int64_t most) const {
  return largest(most, [&](int64_t requests) { return fits(bytes, requests, context); });
}

int64_t PlanFit::most_positions(int64_t bytes, int64_t requests, int64_t most) const {
  return largest(most, [&](int64_t context) { return fits(bytes, requests, context); });
}

}  // namespace strata::cli
