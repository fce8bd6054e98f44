// Schedules of sparse and dense decode on CUDA (ops/sparse_attention/schedule.h, ops/dense_attention/schedule.h): the Hopper kernels go by
// them.
#include "backends/cuda/sm90/sparse_decode/schedule.h"

#include "backends/cuda/common/cuda_device.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/sm90/dense_decode/schedule.h"

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

int64_t dense_schedule_rows(const ScheduledDenseCall& call, const Device& device) {
  using namespace dense_decode;
  const Capabilities& c = capabilities(device);
  const bool is_taken = call.format == KvFormat::bf16 || call.format == KvFormat::fp8_tensor;
  if (!c.sm90() || !is_taken || call.row_dim != kRowDim || call.num_heads == 0 || call.num_requests == 0) return 0;
  const Extent e{call.num_requests, call.max_query_len, call.num_heads, call.max_seq_len};
  const Layout l(e, c.num_sms);
  return l.sequences_per_request == 1 && l.fits(e) ? l.spans : 0;
}

int64_t most_dense_schedule_rows(const ScheduledDenseCall& call, const Device& device) {
  const ScheduledDenseCall least{.format = call.format, .row_dim = call.row_dim, .num_heads = call.num_heads, .num_requests = 1};
  return dense_schedule_rows(least, device) > 0 ? std::min<int64_t>(capabilities(device).num_sms, dense_decode::kMostSpans) : 0;
}

void make_dense_schedule(std::span<const int32_t> query_start_loc, std::span<const int32_t> seq_lens, const TensorView& spans) {
  dense_decode::write_spans(query_start_loc, seq_lens, {spans.ptr<dense_decode::SpanRow>(), static_cast<size_t>(spans.shape[0])});
}

}  // namespace strata::cuda
