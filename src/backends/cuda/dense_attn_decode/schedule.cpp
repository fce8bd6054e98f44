// Schedules of dense decode on CUDA, for the Hopper kernels.
#include "backends/cuda/dense_attn_decode/sm90/schedule.h"

#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda {
namespace {

using namespace dense_decode;

// Work ranges of the call's schedule; 0: the kernels take no schedule.
int64_t work_ranges_of(const ScheduledDenseCall& call, const Device& device) {
  if (!is_cuda(device) || !capabilities(device).sm90()) return 0;
  const bool is_taken = call.format == KvFormat::bf16 || call.format == KvFormat::fp8_tensor;
  if (!is_taken || call.row_dim != kRowDim || call.num_heads == 0 || call.num_requests == 0) return 0;
  const Extent e{call.num_requests, call.max_query_len, call.num_heads, call.max_seq_len};
  const Layout l(e, capabilities(device).num_sms);
  return l.sequences_per_request == 1 && l.fits(e) ? l.work_ranges : 0;
}

int64_t most_bytes(const ScheduledDenseCall& call, const Device& device) {
  const ScheduledDenseCall least{.format = call.format, .row_dim = call.row_dim, .num_heads = call.num_heads, .num_requests = 1};
  if (work_ranges_of(least, device) == 0) return 0;
  return std::min<int64_t>(capabilities(device).num_sms, kMaxWorkRanges) * int64_t{sizeof(WorkRangeRow)};
}

int64_t write(const ScheduledDenseCall& call, const ops::RequestLengths& lengths, const Device& device, std::byte* schedule) {
  const int64_t work_ranges = work_ranges_of(call, device);
  if (work_ranges == 0) return 0;
  write_work_ranges(lengths.query_start_loc, lengths.seq_lens,
                    {reinterpret_cast<WorkRangeRow*>(schedule), static_cast<size_t>(work_ranges)});
  return work_ranges * int64_t{sizeof(WorkRangeRow)};
}

}  // namespace

std::vector<ops::DenseDecodePlanner> dense_decode_planners() { return {{.most_bytes = most_bytes, .write = write}}; }

}  // namespace strata::cuda
