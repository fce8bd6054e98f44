#include "ops/dense_attention/schedule.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::ops {

int64_t dense_schedule_rows(const ScheduledDenseCall& call, const Device& device) {
  return device.id().kind == DeviceKind::cuda ? cuda::dense_schedule_rows(call, device) : 0;
}

int64_t most_dense_schedule_rows(const ScheduledDenseCall& call, const Device& device) {
  return device.id().kind == DeviceKind::cuda ? cuda::most_dense_schedule_rows(call, device) : 0;
}

void make_dense_schedule(std::span<const int32_t> query_start_loc, std::span<const int32_t> seq_lens, const Device& device,
                         const TensorView& spans) {
  if (device.id().kind == DeviceKind::cuda) cuda::make_dense_schedule(query_start_loc, seq_lens, spans);
}

}  // namespace strata::ops
