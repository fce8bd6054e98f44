// One timed case: its rates against the roof, and the forms in which it is printed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench_breakdown.h"
#include "testkit/bench/ceilings.h"
#include "common.h"
#include "testkit/bench/timing.h"

namespace strata::cli {

struct BenchRow {
  std::string op, name, implementation;
  double bytes = 0, flops = 0;
  testkit::Timing timing;
  testkit::ReferenceTiming reference;
  Breakdown breakdown;             // empty unless wanted, and for single ops
  std::optional<double> baseline;  // seconds of the same row in an earlier result
};

double roof_share(const BenchRow& row, const testkit::Ceilings& roof);

// The columns that people read: names, widths that fit what is written under them, and cells. `baseline`: with the column of ratios.
struct BenchColumns {
  bool baseline = false;
  size_t op_width = 0, case_width = 0, implementation_width = 0;

  std::vector<std::string> header() const;
  std::vector<size_t> widths() const;
  std::vector<std::string> cells(const BenchRow& row, const testkit::Ceilings& roof) const;
};

Table bench_csv(const std::vector<BenchRow>& rows, const testkit::Ceilings& roof);
Json bench_json(const BenchRow& row, const testkit::Ceilings& roof);

}  // namespace strata::cli
