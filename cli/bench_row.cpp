#include "bench_row.h"

#include <fmt/format.h>

#include <algorithm>

namespace strata::cli {
namespace {

const char* bound(const BenchRow& r, const testkit::Ceilings& roof) {
  return roof.floor_seconds(0, r.flops) > roof.floor_seconds(r.bytes, 0) ? "compute" : "memory";
}

std::string reference_text(const BenchRow& r) {
  if (r.reference.seconds <= 0) return "";
  const std::string text = format_seconds(r.reference.seconds);
  return r.reference.share > 0.999 ? text : fmt::format("{} (1/{:.0f})", text, 1 / r.reference.share);
}

}  // namespace

double roof_share(const BenchRow& row, const testkit::Ceilings& roof) {
  return roof.floor_seconds(row.bytes, row.flops) / row.timing.median;
}

std::vector<std::string> BenchColumns::header() const {
  std::vector<std::string> names{"op",      "case",      "implementation", "median",    "min",     "GB/s",
                                 "TFLOP/s", "% of roof", "bound",          "reference", "speed-up"};
  if (baseline) names.emplace_back("x baseline");
  return names;
}

std::vector<size_t> BenchColumns::widths() const {
  constexpr size_t kTime = 9, kRate = 8, kReference = 18;
  std::vector<size_t> widths{op_width, case_width, implementation_width, kTime, kTime, kRate, kRate, 9, 7, kReference, kRate};
  if (baseline) widths.push_back(10);
  return widths;
}

std::vector<std::string> BenchColumns::cells(const BenchRow& r, const testkit::Ceilings& roof) const {
  const double median = r.timing.median;
  std::vector<std::string> cells{r.op,
                                 r.name,
                                 r.implementation,
                                 format_seconds(median),
                                 format_seconds(r.timing.minimum),
                                 fmt::format("{:.1f}", r.bytes / median / 1e9),
                                 fmt::format("{:.3f}", r.flops / median / 1e12),
                                 fmt::format("{:.1f}", 100 * roof_share(r, roof)),
                                 bound(r, roof),
                                 reference_text(r),
                                 r.reference.seconds > 0 ? fmt::format("{:.1f}", r.reference.seconds / median) : ""};
  if (baseline) cells.push_back(r.baseline ? fmt::format("{:.3f}", *r.baseline / median) : "");
  return cells;
}

Table bench_csv(const std::vector<BenchRow>& rows, const testkit::Ceilings& roof) {
  Table table({"op", "case", "implementation", "median_s", "min_s", "samples", "bytes", "flops", "bytes_per_s", "flops_per_s", "roof_share",
               "bound", "reference_s", "reference_share", "speed_up", "baseline_s"});
  for (const BenchRow& r : rows) {
    const bool has_reference = r.reference.seconds > 0;
    table.add({r.op, r.name, r.implementation, fmt::format("{:.6g}", r.timing.median), fmt::format("{:.6g}", r.timing.minimum),
               std::to_string(r.timing.samples), fmt::format("{:.6g}", r.bytes), fmt::format("{:.6g}", r.flops),
               fmt::format("{:.6g}", r.bytes / r.timing.median), fmt::format("{:.6g}", r.flops / r.timing.median),
               fmt::format("{:.4g}", roof_share(r, roof)), bound(r, roof), has_reference ? fmt::format("{:.6g}", r.reference.seconds) : "",
               has_reference ? fmt::format("{:.4g}", r.reference.share) : "",
               has_reference ? fmt::format("{:.4g}", r.reference.seconds / r.timing.median) : "",
               r.baseline ? fmt::format("{:.6g}", *r.baseline) : ""});
  }
  return table;
}

Json bench_json(const BenchRow& r, const testkit::Ceilings& roof) {
  Json row = {{"op", r.op},
              {"case", r.name},
              {"implementation", r.implementation},
              {"median_s", r.timing.median},
              {"min_s", r.timing.minimum},
              {"samples", r.timing.samples},
              {"calls_per_sample", r.timing.calls_per_sample},
              {"graph", r.timing.graph},
              {"bytes", r.bytes},
              {"flops", r.flops},
              {"bytes_per_s", r.bytes / r.timing.median},
              {"flops_per_s", r.flops / r.timing.median},
              {"roof_share", roof_share(r, roof)},
              {"bound", bound(r, roof)}};
  if (r.reference.seconds > 0) {
    row["reference"] = {
        {"seconds", r.reference.seconds}, {"share", r.reference.share}, {"speed_up", r.reference.seconds / r.timing.median}};
  }
  if (r.baseline) row["baseline_s"] = *r.baseline;
  if (!r.breakdown.empty()) row["breakdown"] = breakdown_json(r.breakdown);
  return row;
}

}  // namespace strata::cli
