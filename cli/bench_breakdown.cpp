#include "bench_breakdown.h"

#include <fmt/format.h>

#include <numeric>

namespace strata::cli {
namespace {

double sum(const Breakdown& breakdown) {
  return std::accumulate(breakdown.begin(), breakdown.end(), 0.0, [](double all, const CallTime& c) { return all + c.seconds; });
}

}  // namespace

Breakdown break_down(const testkit::Work& work, const std::shared_ptr<Device>& device, const testkit::TimingOptions& options) {
  std::vector<testkit::RecordedCall> calls = work.record();
  const std::vector<double> seconds = testkit::measure_calls(calls, device, options);
  Breakdown breakdown;
  for (size_t i = 0; i < calls.size(); ++i) breakdown.push_back({std::move(calls[i]), seconds[i]});
  return breakdown;
}

void print_breakdown(const std::string& name, double seconds, const Breakdown& breakdown) {
  const double all = sum(breakdown);
  fmt::print("\n{}: {}; its ops one after the other {}\n", name, format_seconds(seconds), format_seconds(all));
  Table table({"op", "weight", "shape", "implementation", "lane", "time", "%"});
  for (const CallTime& c : breakdown) {
    table.add({c.call.op, c.call.weight, c.call.shape, c.call.implementation, std::to_string(c.call.lane), format_seconds(c.seconds),
               fmt::format("{:.1f}", 100 * c.seconds / all)});
  }
  table.print();
}

Json breakdown_json(const Breakdown& breakdown) {
  Json calls = Json::array();
  for (const CallTime& c : breakdown) {
    calls.push_back({{"op", c.call.op},
                     {"weight", c.call.weight},
                     {"shape", c.call.shape},
                     {"implementation", c.call.implementation},
                     {"lane", c.call.lane},
                     {"seconds", c.seconds}});
  }
  return calls;
}

}  // namespace strata::cli
