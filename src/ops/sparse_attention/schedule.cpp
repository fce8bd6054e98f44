#include "ops/sparse_attention/schedule.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::ops {

ScheduleRows schedule_rows(const ScheduledCall& call, const Device& device) {
  return device.id().kind == DeviceKind::cuda ? cuda::schedule_rows(call, device) : ScheduleRows{};
}

ScheduleRows most_schedule_rows(const ScheduledCall& call, const Device& device) {
  return device.id().kind == DeviceKind::cuda ? cuda::most_schedule_rows(call, device) : ScheduleRows{};
}

std::optional<int64_t> make_schedule(const ScheduledCall& call, std::span<const AttendedRows> rows, ScheduleWhen when, const Device& device,
                                     const TensorView& pieces, const TensorView& merges) {
  if (device.id().kind != DeviceKind::cuda) return {};
  return cuda::make_schedule(call, rows, when, device, pieces, merges);
}

}  // namespace strata::ops
