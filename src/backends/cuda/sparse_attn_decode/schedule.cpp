// Schedules of sparse decode on CUDA (ops/sparse_attention/schedule.h): the Hopper kernels go by them.
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

}  // namespace

ops::ScheduleRows schedule_rows(const ScheduledCall& call, const Device& device) {
  const Problem problem = problem_of(call, device);
  const BlockCost* const block = capabilities(device).sm90() && call.num_tokens > 0 ? block_of_pieces(problem) : nullptr;
  if (block == nullptr) return {};
  const int64_t further = most_further_pieces(problem, block->heads);
  return {.pieces = call.num_tokens + further, .merges = std::min(call.num_tokens, further)};
}

ops::ScheduleRows most_schedule_rows(const ScheduledCall& call, const Device& device) {
  if (schedule_rows(call, device).pieces == 0) return {};
  const int64_t most = capabilities(device).num_sms;  // further pieces (most_further_pieces)
  return {.pieces = call.num_tokens + most, .merges = std::min(call.num_tokens, most)};
}

std::optional<int64_t> make_schedule(const ScheduledCall& call, std::span<const AttendedRows> rows, ops::ScheduleWhen when,
                                     const Device& device, const TensorView& pieces, const TensorView& merges) {
  const Problem problem = problem_of(call, device);
  const BlockCost* const block = block_of_pieces(problem);
  if (when == ops::ScheduleWhen::far_bound && !far_bound(problem, block)) return {};
  const Schedule schedule(problem, *block, rows);
  if (when == ops::ScheduleWhen::faster && !schedule.is_faster()) return {};
  return schedule.write({pieces.ptr<PieceRow>(), static_cast<size_t>(pieces.shape[0])},
                        {merges.ptr<MergeRow>(), static_cast<size_t>(merges.shape[0])});
}

}  // namespace strata::cuda
