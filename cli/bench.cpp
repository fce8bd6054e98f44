// strata bench: time, rates and the share of the machine's roof of every op's benchmark cases.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <thread>

#include "bar_plot.h"
#include "baseline.h"
#include "bench_row.h"
#include "case_filter.h"
#include "case_run.h"
#include "case_table.h"
#include "testkit/cases/layer_shape.h"
#include "numbers.h"
#include "words.h"
#include "common.h"
#include "output_file.h"
#include "testkit/cases/registry.h"
#include "stream_table.h"
#include "version.h"

namespace strata::cli {
namespace {

struct Options {
  CommonOptions common;
  CaseFilter filter;
  bool csv = false;
  bool markdown = false;
  bool list = false;
  bool no_reference = false;
  bool breakdown = false;
  std::string plot, baseline;
  double min_time = 0.3;
  uint64_t seed = 1;

  // Rows are printed as they come, for people.
  bool streams() const { return !common.json && !csv; }
};

bool is_bench(const testkit::Tags& tags) { return tags.bench; }

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0.0;
}

class Bencher {
 public:
  Bencher(const Options& options, std::optional<Baseline> baseline) : options_(options), baseline_(std::move(baseline)) {
    if (!options.plot.empty()) plot_file_.emplace("--plot", options.plot, std::vector<InputPath>{{"--baseline", options.baseline}});
    device_ = open_device(options.common);
  }

  void run(const std::vector<const testkit::AnyCase*>& selected) {
    run_.announce(selected.size());
    measure_roof();
    columns_ = columns_of(selected);
    table_.emplace(columns_.header(), columns_.widths(), options_.markdown);
    run_.for_each(selected, !options_.streams(), [&](const testkit::AnyCase& c) {
      const std::vector<std::string> all =
          options_.filter.implementation == "*" ? c.implementations(ops_) : std::vector<std::string>{options_.filter.implementation};
      for (const std::string& implementation : all) time_case(c, implementation);
    });
  }

  int report() {
    {
      const std::lock_guard lock(run_.mutex());
      print();
    }
    return run_.finish(rows_.empty() && !refusals_.empty() ? kFailed : kSuccess);  // every case was refused
  }

 private:
  // Once, before the cases: what a row is measured against is printed with it.
  void measure_roof() {
    fmt::print(stderr, "measuring the roof of {} ...\n", device_->description());
    const testkit::Ceilings roof = testkit::measure_ceilings(ops_, device_);
    const std::lock_guard lock(run_.mutex());
    roof_ = roof;
  }
  // Every row comes after it.
  const testkit::Ceilings& roof() const { return roof_.value(); }

  BenchColumns columns_of(const std::vector<const testkit::AnyCase*>& selected) const {
    BenchColumns columns;
    columns.baseline = baseline_.has_value();
    for (const testkit::AnyCase* c : selected) {
      columns.op_width = std::max(columns.op_width, c->op().size());
      columns.case_width = std::max(columns.case_width, c->name().size());
      for (const std::string& name : c->implementations(ops_))
        columns.implementation_width = std::max(columns.implementation_width, name.size());
    }
    return columns;
  }

  void time_case(const testkit::AnyCase& c, const std::string& implementation) {
    testkit::Work work = c.prepare(ops_, device_, implementation, {.seed = options_.seed, .rotate_bytes = testkit::rotate_bytes(*device_)});
    if (!work.refusal.empty()) {
      const std::lock_guard lock(run_.mutex());
      refusals_.push_back(fmt::format("{} {}: {}", c.op(), c.name(), work.refusal));
      return;
    }
    BenchRow row{c.op(), c.name(), work.implementation, work.bytes, work.flops, {}, {}, {}, {}};
    // Scalar code takes minutes for a large case. So only a share of the case is timed, and the time is scaled.
    const bool scalar = work.implementation == "reference";
    if (scalar || !options_.no_reference) {
      constexpr double kBudget = 0.3;
      row.reference = testkit::time_reference(c, ops_, work.bytes, work.flops, options_.seed, kBudget);
    }
    if (scalar) {
      row.timing = {row.reference.seconds, row.reference.seconds, 1, 1};
    } else {
      row.timing = testkit::measure(work, device_, {.min_time = options_.min_time});
    }
    if (options_.breakdown && work.record) row.breakdown = break_down(work, device_, {.min_time = options_.min_time});
    if (baseline_) row.baseline = baseline_->find(row.op, row.name, row.implementation);
    const std::lock_guard lock(run_.mutex());
    if (options_.streams()) {
      run_.clear_bar();
      table_->print(columns_.cells(row, roof()));
    }
    rows_.push_back(std::move(row));
  }

  // All that is known; under the lock. Before the roof is known there is no row.
  void print() {
    if (options_.common.json) {
      print_json(as_json());
    } else if (options_.csv) {
      fmt::print("{}", bench_csv(rows_, roof_.value_or(testkit::Ceilings{})).csv());
    } else {
      print_notes();
    }
    if (plot_file_ && !rows_.empty()) plot();
  }

  void print_notes() const {
    for (const BenchRow& r : rows_) {
      if (!r.breakdown.empty()) print_breakdown(r.name, r.timing.median, r.breakdown);
    }
    for (const std::string& refusal : refusals_) fmt::print("not run: {}\n", refusal);
    fmt::print("\n{}\n", device_->description());
    if (roof_) {
      fmt::print("roof: {:.3f} TFLOP/s ({}), {:.1f} GB/s ({})\n", roof_->flops / 1e12, roof_->flops_source, roof_->bandwidth / 1e9,
                 roof_->bandwidth_source);
      if (roof_->empty_launch > 0) fmt::print("empty launch: {}\n", format_seconds(roof_->empty_launch));
    }
    if (busy()) fmt::print("load average {:.1f} at the start: other work was running, medians are not this machine's\n", load_);
    if (!options_.no_reference && !rows_.empty())
      fmt::print("reference: one run; (1/n): of that share of the tokens, scaled by the work\n");
    if (baseline_) print_baseline();
  }

  void print_baseline() const {
    double logs = 0;
    int rows = 0;
    for (const BenchRow& r : rows_) {
      if (r.baseline) logs += std::log(*r.baseline / r.timing.median), ++rows;
    }
    fmt::print("x baseline: time of {} over time now, above 1 is faster; {} of {} rows are in it", options_.baseline, rows, rows_.size());
    if (rows > 0) fmt::print(", geometric mean {:.3f}", std::exp(logs / rows));
    fmt::print("\n");
    if (baseline_->device() != device_->description()) fmt::print("the baseline is of another device: {}\n", baseline_->device());
  }

  // Other processes keep many of the processors busy.
  bool busy() const { return load_ > 0.5 + 0.1 * static_cast<double>(std::thread::hardware_concurrency()); }

  Json as_json() const {
    Json rows = Json::array();
    for (const BenchRow& r : rows_) rows.push_back(bench_json(r, roof()));
    Json json = {{"version", version_text()}, {"device", device_->description()}, {"load_average", load_}};
    if (roof_) {
      json["roof"] = {{"flops_per_s", roof_->flops},
                      {"flops_source", roof_->flops_source},
                      {"bytes_per_s", roof_->bandwidth},
                      {"bytes_source", roof_->bandwidth_source},
                      {"empty_launch_s", roof_->empty_launch}};
    }
    json["results"] = rows;
    json["not_run"] = refusals_;
    return json;
  }

  void plot() {
    BarPlot plot{.title = "strata bench: share of the machine's roof",
                 .subtitle = fmt::format("{}; roof: {:.1f} GB/s ({}), {:.3f} TFLOP/s ({})", device_->description(), roof().bandwidth / 1e9,
                                         roof().bandwidth_source, roof().flops / 1e12, roof().flops_source),
                 .axis = "share of the roof (%)",
                 .roof = 100,
                 .roof_label = "roof",
                 .bars = {}};
    for (const BenchRow& r : rows_) {
      const double share = 100 * roof_share(r, roof());
      plot.bars.push_back({r.op + " " + r.name + (options_.filter.implementation == "*" ? ", " + r.implementation : ""), share,
                           fmt::format("{:.0f} %, {}", share, format_seconds(r.timing.median))});
    }
    plot_file_->write(bar_plot(plot));
  }

  const Options& options_;
  std::optional<OutputFile> plot_file_;  // opened before the work
  std::optional<Baseline> baseline_;
  double load_ = load_average();
  OpSet ops_ = default_ops();
  std::shared_ptr<Device> device_;
  std::optional<testkit::Ceilings> roof_;
  BenchColumns columns_;
  std::optional<StreamTable> table_;
  std::vector<BenchRow> rows_;
  std::vector<std::string> refusals_;
  CaseRun run_{"bench", [this] { print(); }};  // its lock is that of what is above; last: it watches them
};

int run_bench(Options& options) {
  testkit::CaseList list = testkit::all_cases();
  for (std::string& name : options.filter.names) {
    name = plain_layer_name(name);
    saying("--case '", "case '", [&] { testkit::add_layer_of(list, name); });
  }
  const auto selected = select_cases(list, options.filter, is_bench);
  if (options.filter.implementation != "*") check_implementation(selected, options.filter);
  if (options.list) {
    CaseTable table;
    for (const testkit::AnyCase* c : selected) table.add(*c);
    table.print(options.common.json);
    return kSuccess;
  }
  std::optional<Baseline> baseline;
  if (!options.baseline.empty()) baseline.emplace(options.baseline);
  Bencher bencher(options, std::move(baseline));
  bencher.run(selected);
  return bencher.report();
}

}  // namespace

void add_bench(CLI::App& app, int& code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Time every op against the machine's roof, measured in the same run");
  command->footer(
      "Exit codes: 0 success; 1 interrupted (Ctrl-C or SIGTERM: keeps the cases timed so far); 2 bad input.\n"
      "--impl '*' times every implementation.\n"
      "--case also takes a layer of any shape:\n" +
      std::string(testkit::kLayerNames) +
      ",\n"
      "as v4-pro-c4-decode-b48-context16k or v3.2-decode-b8-context8192-tp8; V4's layers have a kind, -window, -c4 or -c128.\n"
      "Example: strata bench --op sparse_attn_decode --case 'b16-*' --plot decode.svg");
  add_common(*command, options->common);
  add_filter(*command, options->filter);
  auto* breakdown =
      command->add_flag("--breakdown", options->breakdown, "of whole layers: the time of each op's call, one after the other");
  auto* csv = command->add_flag("--csv", options->csv, "comma-separated values instead of a table");
  csv->excludes("--json");
  csv->excludes(breakdown);
  command->add_flag("--markdown", options->markdown, "the table as Markdown")->excludes("--json")->excludes(csv);
  command->add_option("--baseline", options->baseline, "compare with this result of strata bench --json: a column of ratios")
      ->check(not_empty());
  command->add_option("--plot", options->plot, "write a bar plot of the shares of the roof to this SVG file")->check(not_empty());
  command->add_option("--min-time", options->min_time, "seconds of measuring per case")->check(real_in(0, 600))->capture_default_str();
  command->add_flag("--no-reference", options->no_reference, "do not time the scalar reference");
  add_seed(*command, options->seed, "of the inputs");
  command->add_flag("--list", options->list, "print the cases instead of timing them");
  command->callback([options, &code] { code = run_bench(*options); });
}

}  // namespace strata::cli
