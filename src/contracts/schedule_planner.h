// Schedules: how the rows of a call are shared out to the blocks of an implementation, made by the host, which knows the lengths
// (docs/decisions/0008). The bytes are the implementation's own: its planner writes them, and it alone reads them.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "strata/device.h"

namespace strata::ops {

// Call: what shapes tell of a call of the op. Lengths: what the host knows besides.
template <class Call, class Lengths>
struct SchedulePlanner {
  // Bytes of the largest schedule of calls with no more tokens, requests and rows. 0: no implementation takes one of such calls.
  std::function<int64_t(const Call&, const Device&)> most_bytes;
  // Writes a schedule to host memory of most_bytes(), at a multiple of 16 bytes. How many bytes it has; 0: there is to be none, or no
  // implementation takes one, and what was written has no meaning.
  std::function<int64_t(const Call&, const Lengths&, const Device&, std::byte* schedule)> write;
};

// Of the first planner that makes schedules of such calls on the device.
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
