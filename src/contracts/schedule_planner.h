// Schedules: how the rows of a call are divided among the CTAs of an implementation. The host makes them, because it knows the lengths
// (docs/decisions/0008). The bytes are private to the implementation: its planner writes them, and only it reads them.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "strata/device.h"

namespace strata::ops {

// Call: what shapes say of a call of the op. Lengths: what else the host knows.
template <class Call, class Lengths>
struct SchedulePlanner {
  // Bytes of the largest schedule of calls with at most as many tokens, requests and rows. 0: no implementation takes one for such calls.
  std::function<int64_t(const Call&, const Device&)> most_bytes;
  // Writes a schedule to host memory of most_bytes(), aligned to 16 bytes, and returns its bytes. 0: no schedule, or no implementation
  // takes one; the memory is then unspecified.
  std::function<int64_t(const Call&, const Lengths&, const Device&, std::byte* schedule)> write;
};

// The first planner that makes schedules of such calls on the device.
template <class Call, class Lengths>
int64_t most_schedule_bytes(const std::vector<SchedulePlanner<Call, Lengths>>& planners, const Call& call, const Device& device) {
  for (const auto& planner : planners) {
    if (const int64_t bytes = planner.most_bytes(call, device); bytes > 0) return bytes;
  }
  return 0;
}
template <class Call, class Lengths>
int64_t write_schedule(const std::vector<SchedulePlanner<Call, Lengths>>& planners, const Call& call, const Lengths& lengths,
                       const Device& device, std::byte* schedule) {
  for (const auto& planner : planners) {
    if (const int64_t bytes = planner.write(call, lengths, device, schedule); bytes > 0) return bytes;
  }
  return 0;
}

}  // namespace strata::ops
