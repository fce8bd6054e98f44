// What every subcommand shares: exit codes, tables, JSON, progress.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "strata/config.h"
#include "strata/device.h"
#include "strata/model_config.h"

namespace strata::cli {

// Documented in every --help.
enum ExitCode : int {
  kSuccess = 0,
  kFailed = 1,    // the command ran, and what it checked is not so
  kBadInput = 2,  // usage, files, configurations that cannot be: one line on stderr
};

using Json = nlohmann::ordered_json;

// Options that every subcommand takes the same way.
struct CommonOptions {
  std::string device = "cpu";
  std::optional<int> threads;  // absent: the environment's
  std::optional<std::string> isa;
  std::vector<std::string> force;  // op=implementation
  bool json = false;
};
void add_common(CLI::App& app, CommonOptions& options);
// --device within this build, with make_config().
std::shared_ptr<Device> open_device(const CommonOptions& options);
// --accept-key, of commands that read a config.json.
void add_accept_keys(CLI::App& app, ConfigOptions& options);
// Throws strata::Error for an accepted key that the config does not have, or whose meaning is known.
void check_accept_keys(const ModelConfig& config, const ConfigOptions& options);
// --preset's model. Throws strata::Error for another name, with the nearest.
ModelConfig find_preset(const std::string& name);
// --seed. `what` it decides: "of the inputs".
CLI::Option* add_seed(CLI::App& app, uint64_t& seed, const std::string& what);
// For CLI::Option::check: the option takes any text but an empty one.
CLI::Validator not_empty();
// A line that names the keys of config.json that the library does not know; empty where it knows all.
std::string unknown_keys_line(const ModelConfig& config);
// Accepts real numbers in [low, high]; CLI11's own ranges let NaN through.
CLI::Validator real_in(double low, double high);
// Config::from_environment() with the options that were given laid over it.
Config make_config(const CommonOptions& options);

// Rows of text with right-aligned number columns, printed on stdout.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);
  void print() const;
  std::string csv() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

void print_json(const Json& value);

// A bar on stderr with what is done, out of how much, and the time left; only when stderr is a terminal and `quiet` is false.
class Progress {
 public:
  Progress(std::string label, double total, bool quiet);
  ~Progress();
  // what: the name of what is under way; empty: the bar alone.
  void update(double done, const std::string& what = "");
  // Takes the bar away until the next update.
  void clear();

 private:
  std::string label_;
  double total_;
  bool shown_;
  std::string what_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), last_;
};

std::string format_bytes(double bytes);      // "37.4 MB"
std::string format_seconds(double seconds);  // "1.25 ms"

// Each adds its subcommand; `code` gets the exit code when it ran.
void add_info(CLI::App& app, int& code);
void add_synthesize(CLI::App& app, int& code);
void add_run(CLI::App& app, int& code);
void add_replay(CLI::App& app, int& code);
void add_check(CLI::App& app, int& code);
void add_bench(CLI::App& app, int& code);
void add_plan(CLI::App& app, int& code);

}  // namespace strata::cli
