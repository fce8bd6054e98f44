// Where implementations for GPUs that no build machine has were last run: last_runs.inc, which tools/opencl-runs writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace strata::cli {

struct LastRun {
  std::string_view op, implementation, device, date, commit;
  int32_t passed;  // cases of strata check; none failed
};

// Of an op's implementation, a row for each device.
[[nodiscard]] std::vector<LastRun> last_runs(std::string_view op, std::string_view implementation);

// "NVIDIA H200 2026-11-30 (204 cases)", one after the other; "nowhere".
[[nodiscard]] std::string to_string(const std::vector<LastRun>& runs);

}  // namespace strata::cli
