// Schedules of dense decode on CUDA (ops/dense_attention/schedule.h): the Hopper kernels go by them.
#include "backends/cuda/dense_attn_decode/sm90/schedule.h"

#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda {

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
