// Schedules of sparse decode on CUDA: the Hopper kernels go by them.
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
  return block_of_pieces(problem_of(call, device));
}

// Whatever the heads of a block are.
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
  const Sizes sizes{problem.tokens, most_further_pieces(problem, block->heads)};
  auto* const pieces = reinterpret_cast<PieceRow*>(memory);
  auto* const merges = reinterpret_cast<MergeRow*>(pieces + sizes.pieces());
  const int64_t cut = schedule.write({pieces, static_cast<size_t>(sizes.pieces())}, {merges, static_cast<size_t>(sizes.merges())});
  // Of a captured step every launch has as many.
  return lengths.when == ops::ScheduleWhen::far_bound ? sizes.bytes() : sizes.bytes_of(cut);
}

}  // namespace

std::vector<ops::SparseDecodePlanner> sparse_decode_planners() { return {{.most_bytes = most_bytes, .write = write}}; }

}  // namespace strata::cuda
