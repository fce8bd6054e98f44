// Schedules of sparse decode on CUDA, for the Hopper kernels.
#include "backends/cuda/sparse_attn_decode/sm90/schedule.h"

#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda {
namespace {

using namespace sparse_decode;

Problem problem_of(const ScheduledCall& call, const Device& device) {
  return {.tokens = call.num_tokens,
          .heads = call.num_heads,
          .tiles = ceil_div(call.width, kRowTile),
          .num_sms = capabilities(device).num_sms,
          .format = call.format,
          .batch_invariant = false};
}

// Null: the kernels take no schedule of such a call.
const BlockCost* taken_block(const ScheduledCall& call, const Device& device) {
  if (!is_cuda(device) || !capabilities(device).sm90() || call.num_tokens == 0) return nullptr;
  return block_of_schedule(problem_of(call, device));
}

// For any number of heads per CTA.
int64_t most_bytes(const ScheduledCall& call, const Device& device) {
  return taken_block(call, device) != nullptr ? Sizes{call.num_tokens, capabilities(device).num_sms}.bytes() : 0;
}

int64_t write(const ScheduledCall& call, const ops::TokenLengths& lengths, const Device& device, std::byte* memory) {
  const BlockCost* const block = taken_block(call, device);
  if (block == nullptr) return 0;
  const Problem problem = problem_of(call, device);
  if (lengths.when == ops::ScheduleWhen::far_bound && !far_bound(problem, block)) return 0;
  const Schedule schedule(problem, *block, lengths.rows);
  if (lengths.when == ops::ScheduleWhen::faster && !schedule.is_faster()) return 0;
  const Sizes sizes{problem.tokens, max_further_work_items(problem, block->heads)};
  auto* const work_items = reinterpret_cast<WorkItemRow*>(memory);
  auto* const combine_rows = reinterpret_cast<CombineRow*>(work_items + sizes.work_items());
  const int64_t cut =
      schedule.write({work_items, static_cast<size_t>(sizes.work_items())}, {combine_rows, static_cast<size_t>(sizes.combine_rows())});
  // In a captured step every launch has the same number.
  return lengths.when == ops::ScheduleWhen::far_bound ? sizes.bytes() : sizes.bytes_of(cut);
}

}  // namespace

std::vector<ops::SparseDecodePlanner> sparse_decode_planners() { return {{.most_bytes = most_bytes, .write = write}}; }

}  // namespace strata::cuda
