// strata check: every op's case list, every implementation against the reference.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <mutex>

#include "case_filter.h"
#include "case_run.h"
#include "case_table.h"
#include "common.h"
#include "numbers.h"
#include "testkit/cases/registry.h"

namespace strata::cli {
namespace {

struct Options {
  CommonOptions common;
  CaseFilter filter;
  testkit::CheckOptions check;
  int64_t random = 0;  // cases of every op with shapes drawn anew instead of the lists
  double seconds = 0;  // 0: as long as they take
  int jobs = 1;
  bool list = false;
};

// Random cases by number; each number has a case of every selected op.
class RandomCases {
 public:
  explicit RandomCases(const Options& options) : seed_(options.check.seed), ops_{options.filter.ops, {}, ""}, count_(options.random) {
    if (is_named(options)) {
      const std::string& name = options.filter.names.front();
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), first_);
      count_ = 1;
    }
    testkit::CaseList list = testkit::random_cases(seed_, first_);
    const std::vector<const testkit::AnyCase*> chosen = select_cases(list, ops_, any);
    check_implementation(chosen, options.filter);
    for (const testkit::AnyCase* c : chosen) {
      places_.push_back(
          static_cast<size_t>(std::find_if(list.begin(), list.end(), [&](const auto& l) { return l.get() == c; }) - list.begin()));
    }
  }
  // Whether --case is the name of one of them.
  static bool is_named(const Options& options) {
    if (options.filter.names.size() != 1) return false;
    const std::string& name = options.filter.names.front();
    return name.starts_with(kPrefix) && name.find_first_of("0123456789") == kPrefix.size();
  }

  size_t size() const { return static_cast<size_t>(count_) * places_.size(); }
  std::unique_ptr<testkit::AnyCase> operator[](size_t i) const {
    return testkit::random_case(seed_, first_ + static_cast<int64_t>(i / places_.size()), places_[i % places_.size()]);
  }

 private:
  static constexpr std::string_view kPrefix = "random";
  static bool any(const testkit::Tags&) { return true; }

  uint64_t seed_;
  CaseFilter ops_;
  int64_t first_ = 0, count_;
  std::vector<size_t> places_;  // positions of the selected ops' cases in a list
};

// What became of one implementation's cases.
struct Tally {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t skipped = 0;
  std::map<std::string, int64_t> reasons;
  std::pair<size_t, size_t> place{SIZE_MAX, 0};  // of the first case, of the implementation in its op
};

struct Failure {
  std::string op, name, implementation, message;
  size_t place = 0;
};

// Of random cases, whose names are known one by one.
[[noreturn]] void refuse_name(const CaseFilter& filter) {
  throw Error(ErrorCode::invalid_argument, fmt::format("--case must match a random case of this seed (--list has their names), is '{}'",
                                                       fmt::join(filter.names, "', '")));
}

bool is_test(const testkit::Tags& tags) { return tags.test; }

// The reasons of one implementation, the most frequent first: "3 x needs AVX-512".
std::string reasons_of(const Tally& tally) {
  std::vector<std::pair<int64_t, std::string>> reasons;
  for (const auto& [reason, count] : tally.reasons) reasons.emplace_back(-count, reason);
  std::sort(reasons.begin(), reasons.end());
  std::string text;
  for (size_t i = 0; i < reasons.size() && i < 2; ++i)
    text += fmt::format("{}{} x {}", i ? "; " : "", -reasons[i].first, reasons[i].second);
  return reasons.size() > 2 ? fmt::format("{}; {} more reasons (--json)", text, reasons.size() - 2) : text;
}

class Checker {
 public:
  explicit Checker(const Options& options) : options_(options), device_(open_device(options.common)) {}

  void run(const std::vector<const testkit::AnyCase*>& selected) {
    const auto one = [&](size_t i) {
      check(*selected[i], i);
      return true;
    };
    run_.for_each_number(selected.size(), options_.jobs, options_.common.json, one,
                         [&](size_t i) { return selected[i]->op() + " " + selected[i]->name(); });
    finish();
  }

  void run(const RandomCases& random) {
    const auto start = std::chrono::steady_clock::now();
    run_.for_each_number(random.size(), options_.jobs, options_.common.json, [&](size_t i) {
      const auto c = random[i];
      if (takes_name(options_.filter, c->name())) check(*c, i);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      return !failed_often() && (options_.seconds == 0 || seconds < options_.seconds);
    });
    finish();
  }

  int report() {
    print();
    if (ran_none()) fmt::print(stderr, "{} ran no case: {}\n", options_.filter.implementation, reasons_of(total()));
    return run_.finish(failures_.empty() && !ran_none() ? kSuccess : kFailed);
  }

 private:
  void print() const { options_.common.json ? print_json(as_json()) : print_table(); }

  // Of all ops.
  Tally total() const {
    Tally sum;
    for (const auto& entry : tallies_) {
      const Tally& t = entry.second;
      sum.passed += t.passed, sum.failed += t.failed, sum.skipped += t.skipped;
      for (const auto& [reason, count] : t.reasons) sum.reasons[reason] += count;
    }
    return sum;
  }

  // Whether the implementation that --impl names refused every case.
  bool ran_none() const {
    const Tally sum = total();
    return !options_.filter.implementation.empty() && !run_.interrupted() && sum.passed + sum.failed == 0;
  }

  // A device that is lost fails all that follows.
  bool failed_often() {
    constexpr size_t kOften = 100;
    const std::lock_guard lock(run_.mutex());
    return failures_.size() >= kOften;
  }

  void finish() {
    // In the cases' order, whichever finished first.
    std::sort(tallies_.begin(), tallies_.end(), [](const auto& a, const auto& b) { return a.second.place < b.second.place; });
    std::stable_sort(failures_.begin(), failures_.end(), [](const Failure& a, const Failure& b) { return a.place < b.place; });
    if (!run_.interrupted() && tallies_.empty()) refuse_name(options_.filter);
  }

  void check(const testkit::AnyCase& c, size_t place) {
    const auto run = c.start_check(ops_, options_.check);
    const std::vector<std::string> implementations = c.implementations(ops_);
    for (size_t i = 0; i < implementations.size(); ++i) {
      const std::string& name = implementations[i];
      if (!options_.filter.implementation.empty() && name != options_.filter.implementation) continue;
      const testkit::CheckResult result = run->run(device_, name);
      const std::lock_guard lock(run_.mutex());
      Tally& tally = tally_of(c.op(), name);
      tally.place = std::min(tally.place, {place, i});
      switch (result.outcome) {
        case testkit::Outcome::passed: ++tally.passed; break;
        case testkit::Outcome::failed:
          ++tally.failed;
          failures_.push_back({c.op(), c.name(), name, result.message, place});
          break;
        case testkit::Outcome::skipped:
          ++tally.skipped;
          ++tally.reasons[result.message];
          break;
      }
    }
  }

  Tally& tally_of(const std::string& op, const std::string& implementation) {
    for (auto& [key, tally] : tallies_) {
      if (key.first == op && key.second == implementation) return tally;
    }
    tallies_.push_back({{op, implementation}, {}});
    return tallies_.back().second;
  }

  void print_table() const {
    Table table({"op", "implementation", "cases", "passed", "failed", "skipped", "why"});
    for (const auto& [key, t] : tallies_) {
      table.add({key.first, key.second, std::to_string(t.passed + t.failed + t.skipped), std::to_string(t.passed), std::to_string(t.failed),
                 std::to_string(t.skipped), reasons_of(t)});
    }
    table.print();
    for (const Failure& f : failures_) fmt::print("\n{}\n", f.message);
    // Both numbers: where every implementation is refused, nothing failed and nothing was checked.
    fmt::print("\n{}, seed {}{}: {} passed, {} failed\n", device_->description(), options_.check.seed,
               options_.check.offset == 0 ? "" : fmt::format(", offset {}", options_.check.offset), total().passed, failures_.size());
  }

  Json as_json() const {
    Json rows = Json::array(), failures = Json::array();
    for (const auto& [key, t] : tallies_) {
      rows.push_back({{"op", key.first},
                      {"implementation", key.second},
                      {"passed", t.passed},
                      {"failed", t.failed},
                      {"skipped", t.skipped},
                      {"reasons", t.reasons}});
    }
    for (const Failure& f : failures_) {
      failures.push_back({{"op", f.op}, {"case", f.name}, {"implementation", f.implementation}, {"message", f.message}});
    }
    return {{"device", device_->description()},
            {"seed", options_.check.seed},
            {"offset", options_.check.offset},
            {"results", rows},
            {"failures", failures}};
  }

  const Options& options_;
  std::shared_ptr<Device> device_;
  OpSet ops_ = default_ops();
  std::vector<std::pair<std::pair<std::string, std::string>, Tally>> tallies_;
  std::vector<Failure> failures_;
  CaseRun run_{"check", [this] { print(); }};  // its lock is that of tallies and failures
};

void add_to(CaseTable& table, const RandomCases& random, const CaseFilter& filter) {
  for (size_t i = 0; i < random.size(); ++i) {
    if (const auto c = random[i]; takes_name(filter, c->name())) table.add(*c);
  }
}
void add_to(CaseTable& table, const std::vector<const testkit::AnyCase*>& selected, const CaseFilter&) {
  for (const testkit::AnyCase* c : selected) table.add(*c);
}

template <class Cases>
int list_or_run(const Options& options, const Cases& chosen) {
  if (options.list) {
    CaseTable table;
    add_to(table, chosen, options.filter);
    if (table.empty()) refuse_name(options.filter);
    table.print(options.common.json);
    return kSuccess;
  }
  Checker checker(options);
  checker.run(chosen);
  return checker.report();
}

int run_check(const Options& options) {
  if (!options.common.force.empty()) {
    throw Error(ErrorCode::invalid_argument, "--force: check runs every implementation, whatever is forced; --impl NAME runs one alone");
  }
  if (options.random > 0 || RandomCases::is_named(options)) return list_or_run(options, RandomCases(options));
  const testkit::CaseList list = testkit::all_cases();
  const auto selected = select_cases(list, options.filter, is_test);
  check_implementation(selected, options.filter);
  return list_or_run(options, selected);
}

}  // namespace

void add_check(CLI::App& app, int& code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("check", "Run every op's cases with every implementation against the reference");
  command->footer(
      "Exit codes: 0 every case passed; 1 a case failed (its message has the command that reruns it), --impl refused every case, or\n"
      "interrupted (Ctrl-C or SIGTERM: reports the cases run so far); 2 bad input.\n"
      "Random cases depend on --seed and their number alone, so that the name of one makes it again: --case 'random17-*' --seed 5.\n"
      "Example: strata check --op sparse_attn_decode --impl reference\n"
      "         strata check --op indexer_topk --random 1000000 --seconds 30 --seed 5");
  add_common(*command, options->common);
  command->get_option("--force")->group("");  // not in the help: run_check refuses it
  add_filter(*command, options->filter);
  add_seed(*command, options->check.seed, "of the inputs, and of random shapes");
  auto* random = command->add_option("--random", options->random,
                                     "instead of the lists, N cases of each op with random shapes; ends after 100 failures");
  random->transform(count_in(1, int64_t{1} << 30));
  command->add_option("--seconds", options->seconds, "begin no random case after N seconds")->check(real_in(0, 1e6))->needs(random);
  command->add_option("--offset", options->check.offset, "bytes, a multiple of 8, that all memory begins after a multiple of 256")
      ->check([](const std::string& text) {
        const bool number = !text.empty() && text.size() <= 3 && text.find_first_not_of("0123456789") == std::string::npos;
        return number && std::stoi(text) < 256 && std::stoi(text) % 8 == 0 ? "" : "must be a multiple of 8 below 256, is " + text;
      });
  command->add_option("--jobs", options->jobs, "cases side by side; on a CPU with --threads 1")
      ->transform(count_in(1, 1024))
      ->capture_default_str();
  command->add_flag("--list", options->list, "print the cases instead of running them");
  command->callback([options, &code] { code = run_check(*options); });
}

}  // namespace strata::cli
