// Runs a batch of query tokens on the host's threads.
//
// With enough queries, a query is one task. With fewer queries than threads, a query's tasks are (group of heads) x (block of its key
// list). Every block writes a partial result; these are combined in the order of the blocks. This is the arithmetic of the undivided call,
// operation by operation, so both give the same bits.
#include <algorithm>

#include "attend.h"
#include "paths.h"
#include "core/thread_team.h"
#include "rows.h"

namespace strata::cpu {
namespace {

constexpr int kHeadGroup = 32;  // heads of a task when key lists are divided: two head tiles fill the tile unit

std::size_t align64(std::size_t n) { return (n + 63) & ~std::size_t{63}; }

// Partial results in flight: enough to keep the threads busy between two combinations.
int partials_in_flight(int threads) { return 2 * threads; }

struct Plan {
  int threads;
  std::size_t scratch, partial;  // bytes a thread; bytes a partial result of kHeadGroup heads
  int groups;
  explicit Plan(const AttendBatch& b)
      : threads(b.num_threads),
        scratch(align64(attend_scratch_bytes(b.path, b.shape, b.shape.num_heads))),
        partial(align64(attend_partial_bytes(std::min(kHeadGroup, b.shape.num_heads), b.shape.value_dim))),
        groups((b.shape.num_heads + kHeadGroup - 1) / kHeadGroup) {}
  HeadRange heads(const AttendShape& shape, int group) const {
    return {group * kHeadGroup, std::min(kHeadGroup, shape.num_heads - group * kHeadGroup)};
  }
};

void attend_divided(const AttendBatch& b, const Plan& plan, const AttendQuery& query, std::byte* workspace) {
  const std::int64_t blocks = attend_num_blocks(total_entries(b.shape, query));
  const std::int64_t wave = (partials_in_flight(plan.threads) + plan.groups - 1) / plan.groups;
  std::byte* partials = workspace + plan.threads * plan.scratch;
  // [0, groups): the results so far; then [group][wave]
  auto partial_at = [&](std::int64_t i) { return reinterpret_cast<float*>(partials + static_cast<std::size_t>(i) * plan.partial); };
  auto scratch = [&] { return workspace + static_cast<std::size_t>(thread_index()) * plan.scratch; };
  for (std::int64_t first = 0; first == 0 || first < blocks; first += wave) {
    const std::int64_t count = std::min(wave, blocks - first);
    for_each_of(count * plan.groups, plan.threads, [&](std::int64_t task) {
      const std::int64_t group = task / count, i = task % count;
      float* out = first == 0 && i == 0 ? partial_at(group) : partial_at(plan.groups + group * wave + i);
      attend_partial(b.path, b.shape, query, plan.heads(b.shape, static_cast<int>(group)), first + i, first + i + 1, scratch(), out);
    });
    for_each_of(plan.groups, plan.threads, [&](std::int64_t group) {
      const HeadRange heads = plan.heads(b.shape, static_cast<int>(group));
      if (blocks == 0) attend_partial(b.path, b.shape, query, heads, 0, 0, scratch(), partial_at(group));
      for (std::int64_t i = first == 0 ? 1 : 0; i < count; ++i)
        combine_partial(b.path, heads.count, b.shape.value_dim, partial_at(group), partial_at(plan.groups + group * wave + i));
      if (first + wave >= blocks) finish_partial(b.path, b.shape, query, heads, partial_at(group));
    });
  }
}

}  // namespace

// Partial results even where there are so many queries that none is divided: room for a call has to do for one of fewer queries.
std::size_t attend_batch_workspace_bytes(const AttendBatch& b) {
  const Plan plan(b);
  const auto partials = 2 * static_cast<std::size_t>(plan.groups) + static_cast<std::size_t>(partials_in_flight(plan.threads));
  return plan.threads * plan.scratch + partials * plan.partial;
}

void attend_batch(const AttendBatch& b, const QueryAt& query_at, std::byte* workspace) {
  const Plan plan(b);
  if (b.num_queries < plan.threads) {
    for (std::int64_t i = 0; i < b.num_queries; ++i) attend_divided(b, plan, query_at(i), workspace);
    return;
  }
  for_each_of(b.num_queries, plan.threads, [&](std::int64_t i) {
    attend(b.path, b.shape, query_at(i), {0, b.shape.num_heads}, workspace + static_cast<std::size_t>(thread_index()) * plan.scratch);
  });
}

}  // namespace strata::cpu
