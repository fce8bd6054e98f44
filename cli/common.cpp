#include "common.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string_view>

#include "numbers.h"
#include "strata/error.h"
#include "strata/op_set.h"
#include "words.h"

namespace strata::cli {

namespace {

constexpr const char* kDevices = "cpu, cuda:N or opencl:N";

DeviceId device_id(const std::string& text) {
  return saying(fmt::format("--device must be {}", kDevices), "a device is cpu, cuda:N or opencl:N", [&] { return parse_device_id(text); });
}

}  // namespace

void add_common(CLI::App& app, CommonOptions& options) {
  app.add_option("--device", options.device, kDevices)->capture_default_str();
  app.add_option("--threads", options.threads, "CPU threads; 0: one per core, as without STRATA_CPU_THREADS")->transform(count_in(0, 4096));
  app.add_option("--isa", options.isa,
                 "highest CPU instruction set: portable, avx2, avx512, avx512_bf16, amx, or best, as without STRATA_CPU_ISA");
  app.add_option("--force", options.force, "OP=IMPLEMENTATION: use this implementation of an op; * for every op that has it");
  app.add_flag("--json", options.json, "JSON on stdout instead of a table");
}

void add_accept_keys(CLI::App& app, ConfigOptions& options) {
  app.add_option("--accept-key", options.accept_keys,
                 "a key of config.json that is not known, whose name suggests attention, and that attention does not depend on");
}

void check_accept_keys(const ModelConfig& config, const ConfigOptions& options) {
  const std::vector<std::string>& unknown = config.unknown_keys();
  for (const std::string& key : options.accept_keys) {
    if (std::find(unknown.begin(), unknown.end(), key) != unknown.end()) continue;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("--accept-key must name a key that the config has and that is not known, is '{}'{}", key, nearest_text(key, unknown)));
  }
}

ModelConfig find_preset(const std::string& name) {
  const std::vector<std::string> names = preset_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return preset(name);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("--preset must be one of {}, is '{}'{}", fmt::join(names, ", "), name, nearest_text(name, names)));
}

CLI::Option* add_seed(CLI::App& app, uint64_t& seed, const std::string& what) {
  return app.add_option("--seed", seed, what)->transform(count_in(0, std::numeric_limits<int64_t>::max()))->capture_default_str();
}

CLI::Validator not_empty() {
  return {[](std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); }, ""};
}

std::string unknown_keys_line(const ModelConfig& config) {
  std::vector<std::string> keys = config.unknown_keys();
  for (std::string& key : keys) {
    // What a terminal would obey is printed as JSON has it.
    const bool plain = std::none_of(key.begin(), key.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (!plain) key = Json(key).dump();
  }
  return keys.empty() ? "" : fmt::format("keys of config.json that are not known and were passed over: {}\n", fmt::join(keys, ", "));
}

CLI::Validator real_in(double low, double high) {
  const auto check = [low, high](std::string& text) -> std::string {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(text, value);
    return number && value >= low && value <= high ? "" : fmt::format("must be a number in [{}, {}], is {}", low, high, text);
  };
  return {check, fmt::format("in [{}, {}]", low, high)};
}

Config make_config(const CommonOptions& options) {
  constexpr const char* kForced = "Config::force";
  const OpSet ops = default_ops();
  Config config = Config::from_environment();
  saying("STRATA_FORCE", kForced, [&] { check_forced(ops, config); });
  if (options.threads) config.cpu_threads = *options.threads;
  if (options.isa) config.cpu_isa = parse_cpu_isa(*options.isa);
  for (const std::string& item : options.force) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
      throw Error(ErrorCode::invalid_argument, fmt::format("--force must be OP=IMPLEMENTATION, is '{}'", item));
    }
    config.force[item.substr(0, equals)] = item.substr(equals + 1);
  }
  saying("--force", kForced, [&] { check_forced(ops, config); });
  return config;
}

std::shared_ptr<Device> open_device(const CommonOptions& options) {
  return strata::open_device(device_id(options.device), make_config(options));
}

Table::Table(std::vector<std::string> header) : header_(std::move(header)) {}

void Table::add(std::vector<std::string> row) {
  row.resize(header_.size());
  rows_.push_back(std::move(row));
}

void Table::print() const {
  std::vector<size_t> width(header_.size());
  std::vector<bool> number(header_.size(), !rows_.empty());
  for (size_t c = 0; c < header_.size(); ++c) {
    width[c] = header_[c].size();
    for (const auto& row : rows_) {
      width[c] = std::max(width[c], row[c].size());
      if (!row[c].empty() && row[c].find_first_of("0123456789-+") != 0) number[c] = false;
    }
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t c = 0; c < cells.size(); ++c) {
      text += number[c] ? fmt::format("{:>{}}", cells[c], width[c]) : fmt::format("{:<{}}", cells[c], width[c]);
      if (c + 1 < cells.size()) text += "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    std::puts(text.c_str());
  };
  line(header_);
  for (const auto& row : rows_) line(row);
}

std::string Table::csv() const {
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    for (size_t c = 0; c < cells.size(); ++c) {
      const bool quote = cells[c].find_first_of(",\"\n") != std::string::npos;
      std::string cell = cells[c];
      for (size_t at = 0; quote && (at = cell.find('"', at)) != std::string::npos; at += 2) cell.insert(at, "\"");
      text += (c ? "," : "") + (quote ? "\"" + cell + "\"" : cell);
    }
    text += "\n";
  };
  line(header_);
  for (const auto& row : rows_) line(row);
  return text;
}

// Names of files need not be UTF-8.
void print_json(const Json& value) { std::puts(value.dump(2, ' ', false, Json::error_handler_t::replace).c_str()); }

Progress::Progress(std::string label, double total, bool quiet)
    : label_(std::move(label)), total_(total), shown_(!quiet && total > 0 && isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::update(double done, const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || (now - last_ < std::chrono::milliseconds(100) && done < total_ && what == what_)) return;
  last_ = now;
  what_ = what;
  constexpr int kWidth = 24;
  const double share = std::clamp(done / total_, 0.0, 1.0);
  const int filled = static_cast<int>(share * kWidth);
  // Counts have whole numbers; shares of one step have none worth showing.
  const std::string count = total_ > 1 ? fmt::format(" {:.0f}/{:.0f}", done, total_) : "";
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const std::string left = share > 0 && share < 1 ? fmt::format(", {} left", format_seconds(seconds / share - seconds)) : "";
  fmt::print(stderr, "\r\033[K{} [{:=<{}}{: <{}}] {:3.0f}%{}{}{}{}", label_, "", filled, "", kWidth - filled, share * 100, count, left,
             what.empty() ? "" : "  ", what);
  std::fflush(stderr);
}

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 1000.0 && unit < 4) {
    bytes /= 1000.0;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds >= 1.0) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

}  // namespace strata::cli
