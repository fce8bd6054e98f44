// An earlier result of `strata bench --json`, to compare with.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>

namespace strata::cli {

class Baseline {
 public:
  // Throws strata::Error for a file that cannot be read or is no such result.
  explicit Baseline(const std::string& path);

  // Median seconds of a row; none: the file does not have it.
  std::optional<double> find(const std::string& op, const std::string& name, const std::string& implementation) const;
  const std::string& device() const { return device_; }

 private:
  std::map<std::tuple<std::string, std::string, std::string>, double> medians_;
  std::string device_;
};

}  // namespace strata::cli
