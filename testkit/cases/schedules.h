// Schedules of a case's call.
#pragma once

#include "contracts/schedule_planner.h"
#include "testkit/harness/inputs.h"

namespace strata::testkit {

// The schedule that the device's planner makes; where there is none, bytes that whoever takes the call must ignore.
template <class Call, class Lengths>
TensorView make_schedule(Inputs& in, const std::vector<ops::SchedulePlanner<Call, Lengths>>& planners, const Call& call,
                         const Lengths& lengths) {
  struct alignas(16) Unit {
    std::byte bytes[16];
  };
  std::vector<Unit> memory(static_cast<size_t>(ops::most_schedule_bytes(planners, call, *in.device()) / 16 + 1));
  const int64_t bytes = ops::write_schedule(planners, call, lengths, *in.device(), memory.data()->bytes);
  if (bytes == 0) return in.u8(std::vector<uint8_t>(40, 0xA7));
  const auto* const schedule = reinterpret_cast<const uint8_t*>(memory.data());
  return in.u8({schedule, schedule + bytes});
}

}  // namespace strata::testkit
