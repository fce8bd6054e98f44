// Typed access to one JSON object of config.json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config_keys.h"

namespace strata {

// null counts as absent, as it does in the published configs. A reader can only ask for keys that config_keys() calls honoured.
class ConfigFields {
 public:
  ConfigFields(const nlohmann::json& object, KeyScope scope, std::string origin, std::string prefix = {});

  const nlohmann::json& object() const { return object_; }
  const std::string& origin() const { return origin_; }
  const std::string& prefix() const { return prefix_; }
  KeyScope scope() const { return scope_; }

  [[noreturn]] void reject(std::string_view key, std::string_view expected, std::string_view actual) const;

  const nlohmann::json* get(std::string_view key) const;
  bool has(std::string_view key) const { return get(key) != nullptr; }
  const nlohmann::json& need(std::string_view key, std::string_view expected) const;

  int64_t integer(std::string_view key) const { return to_integer(key, need(key, "an integer")); }
  std::optional<int64_t> optional_integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t otherwise) const { return optional_integer(key).value_or(otherwise); }
  double number(std::string_view key) const { return to_number(key, need(key, "a number")); }
  std::optional<double> optional_number(std::string_view key) const;
  double number(std::string_view key, double otherwise) const { return optional_number(key).value_or(otherwise); }
  std::optional<std::string> text(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::vector<std::string>> texts(std::string_view key) const;
  std::optional<ConfigFields> object(std::string_view key, KeyScope scope) const;

  int64_t to_integer(std::string_view key, const nlohmann::json& value) const;

 private:
  double to_number(std::string_view key, const nlohmann::json& value) const;

  const nlohmann::json& object_;
  KeyScope scope_;
  std::string origin_;
  std::string prefix_;
};

}  // namespace strata
