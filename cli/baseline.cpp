#include "baseline.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "strata/error.h"

namespace strata::cli {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::invalid_file, fmt::format("--baseline: {}: {}", path, what));
}

}  // namespace

Baseline::Baseline(const std::string& path) {
  std::ifstream file(path);
  if (!file) refuse(path, "cannot be opened");
  const json result = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!result.is_object() || !result.contains("results") || !result["results"].is_array()) {
    refuse(path, "expected what strata bench --json prints, is something else");
  }
  if (result.contains("device") && result["device"].is_string()) device_ = result["device"].get<std::string>();
  for (const json& row : result["results"]) {
    const auto text = [&](const char* key) {
      if (!row.is_object() || !row.contains(key) || !row[key].is_string()) refuse(path, fmt::format("results: {}: expected a string", key));
      return row[key].get<std::string>();
    };
    const std::string op = text("op"), name = text("case"), implementation = text("implementation");
    if (!row.contains("median_s") || !row["median_s"].is_number() || !(row["median_s"].get<double>() > 0)) {
      refuse(path, "results: median_s: expected a number above 0");
    }
    medians_[{op, name, implementation}] = row["median_s"].get<double>();
  }
}

std::optional<double> Baseline::find(const std::string& op, const std::string& name, const std::string& implementation) const {
  const auto it = medians_.find({op, name, implementation});
  return it == medians_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace strata::cli
