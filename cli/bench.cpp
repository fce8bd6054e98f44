// strata bench: time, rates and the share of the machine's roof of every op's benchmark cases.
#include <fmt/format.h>

#include <cstdlib>
#include <thread>

#include "bar_plot.h"
#include "bench_breakdown.h"
#include "case_filter.h"
#include "case_run.h"
#include "case_table.h"
#include "ceilings.h"
#include "common.h"
#include "output_file.h"
#include "registry.h"
#include "timing.h"

namespace strata::cli {
namespace {

struct Options {
  CommonOptions common;
  CaseFilter filter;
  bool csv = false;
  bool list = false;
  bool no_reference = false;
  bool breakdown = false;
  std::string plot;
  double min_time = 0.3;
  uint64_t seed = 1;
};

struct Row {
  std::string op, name, implementation;
  double bytes = 0, flops = 0;
  cases::Timing timing;
  cases::ReferenceTiming reference;
  Breakdown breakdown;  // empty unless asked for, and for single ops
};

bool is_bench(const cases::Tags& tags) { return tags.bench; }

class Bencher {
 public:
  explicit Bencher(const Options& options)
      : options_(options),
        device_(open_device(parse_device_id(options.common.device), make_config(options.common))),
        ceilings_(cases::measure_ceilings(ops_, device_)) {}

  void run(const std::vector<const cases::AnyCase*>& selected) {
    run_.for_each(selected, options_.common.json || options_.csv, [&](const cases::AnyCase& c) {
      const std::vector<std::string> all =
          options_.filter.implementation == "*" ? c.implementations(ops_) : std::vector<std::string>{options_.filter.implementation};
      for (const std::string& implementation : all) time_case(c, implementation);
    });
  }

  int report() {
    // What else ran on the machine lowers a ceiling: the better of two measurements, before and after, counts.
    if (!run_.interrupted()) ceilings_.improve(cases::measure_ceilings(ops_, device_));
    if (options_.common.json) {
      print_json(as_json());
    } else if (options_.csv) {
      fmt::print("{}", csv().csv());
    } else {
      print_table();
    }
    if (!options_.plot.empty()) plot();
    return run_.finish(kSuccess);
  }

 private:
  void time_case(const cases::AnyCase& c, const std::string& implementation) {
    cases::Work work = c.prepare(ops_, device_, implementation, {.seed = options_.seed, .rotate_bytes = cases::rotate_bytes(*device_)});
    if (!work.refusal.empty()) {
      refusals_.push_back(fmt::format("{} {}: {}", c.op(), c.name(), work.refusal));
      return;
    }
    Row row{c.op(), c.name(), work.implementation, work.bytes, work.flops, {}, {}, {}};
    // Scalar code over the whole of a large case takes minutes: its share, scaled, is its time.
    const bool scalar = work.implementation == "reference";
    if (scalar || !options_.no_reference) {
      constexpr double kBudget = 0.3;
      row.reference = cases::time_reference(c, ops_, work.bytes, work.flops, options_.seed, kBudget);
    }
    if (scalar) {
      row.timing = {row.reference.seconds, row.reference.seconds, 1, 1};
    } else {
      row.timing = cases::measure(work, device_, {.min_time = options_.min_time});
    }
    if (options_.breakdown && work.record) row.breakdown = break_down(work, device_, {.min_time = options_.min_time});
    rows_.push_back(std::move(row));
  }

  double roof_share(const Row& r) const { return ceilings_.floor_seconds(r.bytes, r.flops) / r.timing.median; }
  const char* bound(const Row& r) const {
    return ceilings_.floor_seconds(0, r.flops) > ceilings_.floor_seconds(r.bytes, 0) ? "compute" : "memory";
  }

  void print_table() const {
    Table table({"op", "case", "implementation", "median", "min", "GB/s", "TFLOP/s", "% of roof", "bound", "reference", "speed-up"});
    for (const Row& r : rows_) {
      table.add({r.op, r.name, r.implementation, format_seconds(r.timing.median), format_seconds(r.timing.minimum),
                 fmt::format("{:.1f}", r.bytes / r.timing.median / 1e9), fmt::format("{:.3f}", r.flops / r.timing.median / 1e12),
                 fmt::format("{:.1f}", 100 * roof_share(r)), bound(r), reference_text(r), speed_up_text(r)});
    }
    table.print();
    for (const Row& r : rows_) {
      if (!r.breakdown.empty()) print_breakdown(r.name, r.timing.median, r.breakdown);
    }
    for (const std::string& refusal : refusals_) fmt::print("not run: {}\n", refusal);
    fmt::print("\n{}\nroof: {:.3f} TFLOP/s ({}), {:.1f} GB/s ({})\n", device_->description(), ceilings_.flops / 1e12,
               ceilings_.flops_source, ceilings_.bandwidth / 1e9, ceilings_.bandwidth_source);
    if (ceilings_.empty_launch > 0) fmt::print("empty launch: {}\n", format_seconds(ceilings_.empty_launch));
    if (busy()) fmt::print("load average {:.1f} at the start: other work was running, medians are not this machine's\n", load_);
    if (!options_.no_reference) fmt::print("reference: one run; (1/n): of that share of the tokens, scaled by the work\n");
  }

  // Others keep a good part of the processors.
  bool busy() const { return load_ > 0.5 + 0.1 * static_cast<double>(std::thread::hardware_concurrency()); }

  static std::string reference_text(const Row& r) {
    if (r.reference.seconds <= 0) return "";
    const std::string text = format_seconds(r.reference.seconds);
    return r.reference.share > 0.999 ? text : fmt::format("{} (1/{:.0f})", text, 1 / r.reference.share);
  }
  static std::string speed_up_text(const Row& r) {
    return r.reference.seconds > 0 ? fmt::format("{:.1f}", r.reference.seconds / r.timing.median) : "";
  }

  Table csv() const {
    Table table({"op", "case", "implementation", "median_s", "min_s", "samples", "bytes", "flops", "bytes_per_s", "flops_per_s",
                 "roof_share", "bound", "reference_s", "reference_share", "speed_up"});
    for (const Row& r : rows_) {
      const bool has_reference = r.reference.seconds > 0;
      table.add({r.op, r.name, r.implementation, fmt::format("{:.6g}", r.timing.median), fmt::format("{:.6g}", r.timing.minimum),
                 std::to_string(r.timing.samples), fmt::format("{:.6g}", r.bytes), fmt::format("{:.6g}", r.flops),
                 fmt::format("{:.6g}", r.bytes / r.timing.median), fmt::format("{:.6g}", r.flops / r.timing.median),
                 fmt::format("{:.4g}", roof_share(r)), bound(r), has_reference ? fmt::format("{:.6g}", r.reference.seconds) : "",
                 has_reference ? fmt::format("{:.4g}", r.reference.share) : "",
                 has_reference ? fmt::format("{:.4g}", r.reference.seconds / r.timing.median) : ""});
    }
    return table;
  }

  Json as_json() const {
    Json rows = Json::array();
    for (const Row& r : rows_) {
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
                  {"roof_share", roof_share(r)},
                  {"bound", bound(r)}};
      if (r.reference.seconds > 0) {
        row["reference"] = {
            {"seconds", r.reference.seconds}, {"share", r.reference.share}, {"speed_up", r.reference.seconds / r.timing.median}};
      }
      if (!r.breakdown.empty()) row["breakdown"] = breakdown_json(r.breakdown);
      rows.push_back(std::move(row));
    }
    return {{"device", device_->description()},
            {"load_average", load_},
            {"roof",
             {{"flops_per_s", ceilings_.flops},
              {"flops_source", ceilings_.flops_source},
              {"bytes_per_s", ceilings_.bandwidth},
              {"bytes_source", ceilings_.bandwidth_source},
              {"empty_launch_s", ceilings_.empty_launch}}},
            {"results", rows},
            {"not_run", refusals_}};
  }

  void plot() const {
    BarPlot plot{
        .title = "strata bench: share of the machine's roof",
        .subtitle = fmt::format("{}; roof: {:.1f} GB/s ({}), {:.3f} TFLOP/s ({})", device_->description(), ceilings_.bandwidth / 1e9,
                                ceilings_.bandwidth_source, ceilings_.flops / 1e12, ceilings_.flops_source),
        .axis = "share of the roof (%)",
        .roof = 100,
        .roof_label = "roof",
        .bars = {}};
    for (const Row& r : rows_) {
      plot.bars.push_back({r.op + " " + r.name + (options_.filter.implementation == "*" ? ", " + r.implementation : ""),
                           100 * roof_share(r), fmt::format("{:.0f} %, {}", 100 * roof_share(r), format_seconds(r.timing.median))});
    }
    OutputFile("--plot", options_.plot).write(bar_plot(plot));
  }

  static double load_average() {
    double load = 0;
    return getloadavg(&load, 1) == 1 ? load : 0.0;
  }

  const Options& options_;
  double load_ = load_average();
  OpSet ops_ = default_ops();
  std::shared_ptr<Device> device_;
  CaseRun run_{"bench"};  // before the roof, which takes seconds: an interrupt then is a request, too
  cases::Ceilings ceilings_;
  std::vector<Row> rows_;
  std::vector<std::string> refusals_;
};

int run_bench(const Options& options) {
  cases::CaseList list = cases::all_cases();
  cases::add_layer_of(list, options.filter.name);
  const auto selected = select_cases(list, options.filter, is_bench);
  if (options.filter.implementation != "*") check_implementation(selected, options.filter);
  if (options.list) {
    CaseTable table;
    for (const cases::AnyCase* c : selected) table.add(*c);
    table.print(options.common.json);
    return kSuccess;
  }
  Bencher bencher(options);
  bencher.run(selected);
  return bencher.report();
}

}  // namespace

void add_bench(CLI::App& app, int& code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Time every op against the machine's roof, measured in the same run");
  command->footer(
      "Exit codes: 0 success; 1 interrupted (Ctrl-C or SIGTERM: reports the cases timed so far); 2 bad input.\n"
      "--impl '*' times every implementation.\n"
      "--case also takes a layer of any shape: PRESET[-window|-c4|-c128]-decode-bREQUESTS[-draftTOKENS] or "
      "-prefill-TOKENS[-bREQUESTS][-besideDECODES[-draftTOKENS]],\n"
      "then [-contextPOSITIONS[-ragged]][-boundPOSITIONS][-fp8-output][-KV_FORMAT][-tpSIZE], as v4-pro-c4-decode-b48-context16384 or "
      "v3.2-decode-b8-context8192-tp8.\n"
      "Example: strata bench --op sparse_attn_decode --case 'b16-*' --plot decode.svg");
  add_common(*command, options->common);
  add_filter(*command, options->filter);
  auto* breakdown =
      command->add_flag("--breakdown", options->breakdown, "of whole layers: the time of each op's call, one after the other");
  auto* csv = command->add_flag("--csv", options->csv, "comma-separated values instead of a table");
  csv->excludes("--json");
  csv->excludes(breakdown);
  command->add_option("--plot", options->plot, "write a bar plot of the shares of the roof to this SVG file");
  command->add_option("--min-time", options->min_time, "seconds of measuring per case")->check(real_in(0, 600))->capture_default_str();
  command->add_flag("--no-reference", options->no_reference, "do not time the scalar reference");
  command->add_option("--seed", options->seed, "of the inputs")->capture_default_str();
  command->add_flag("--list", options->list, "print the cases instead of timing them");
  command->callback([options, &code] { code = run_bench(*options); });
}

}  // namespace strata::cli
