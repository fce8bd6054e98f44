#include "last_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace strata::cli {
std::vector<LastRun> last_runs(std::string_view op, std::string_view implementation) {
  static const std::vector<LastRun> all = {
#include "last_runs.inc"
  };
  std::vector<LastRun> result;
  std::copy_if(all.begin(), all.end(), std::back_inserter(result),
               [&](const LastRun& run) { return run.op == op && run.implementation == implementation; });
  return result;
}

std::string to_string(const std::vector<LastRun>& runs) {
  if (runs.empty()) return "nowhere";
  std::vector<std::string> texts;
  texts.reserve(runs.size());
  for (const LastRun& run : runs) texts.push_back(fmt::format("{} {} ({} cases)", run.device, run.date, run.passed));
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace strata::cli
