#include "checkpoint/config_fields.h"

#include <algorithm>
#include <utility>

#include "checkpoint/json.h"
#include "core/check.h"

namespace strata {

using nlohmann::json;

ConfigFields::ConfigFields(const json& object, KeyScope scope, std::string origin, std::string prefix)
    : object_(object), scope_(scope), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

void ConfigFields::reject(std::string_view key, std::string_view expected, std::string_view actual) const {
  fail(ErrorCode::invalid_file, "{}: {}{}: expected {}, is {}", origin_, prefix_, key, expected, actual);
}

const json* ConfigFields::get(std::string_view key) const {
  const auto honours = [&](const ConfigKey& k) { return k.scope == scope_ && k.effect == KeyEffect::honoured && k.name == key; };
  require(std::any_of(config_keys().begin(), config_keys().end(), honours), "config_keys: {}: expected in the table as honoured, is not",
          key);
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const json& ConfigFields::need(std::string_view key, std::string_view expected) const {
  const json* value = get(key);
  if (value == nullptr) reject(key, expected, object_.contains(key) ? "null" : "missing");
  return *value;
}

std::optional<int64_t> ConfigFields::optional_integer(std::string_view key) const {
  const json* value = get(key);
  return value == nullptr ? std::nullopt : std::optional(to_integer(key, *value));
}

std::optional<double> ConfigFields::optional_number(std::string_view key) const {
  const json* value = get(key);
  return value == nullptr ? std::nullopt : std::optional(to_number(key, *value));
}

std::optional<std::string> ConfigFields::text(std::string_view key) const {
  const json* value = get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) reject(key, "a string", brief(*value));
  return value->get<std::string>();
}

std::optional<bool> ConfigFields::flag(std::string_view key) const {
  const json* value = get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) reject(key, "true or false", brief(*value));
  return value->get<bool>();
}

std::optional<std::vector<std::string>> ConfigFields::texts(std::string_view key) const {
  const json* value = get(key);
  if (value == nullptr) return std::nullopt;
  const bool strings = value->is_array() && std::all_of(value->begin(), value->end(), [](const json& v) { return v.is_string(); });
  if (!strings) reject(key, "an array of strings", brief(*value));
  return value->get<std::vector<std::string>>();
}

std::optional<ConfigFields> ConfigFields::object(std::string_view key, KeyScope scope) const {
  const json* value = get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) reject(key, "an object", brief(*value));
  return ConfigFields(*value, scope, origin_, prefix_ + std::string(key) + ".");
}

int64_t ConfigFields::to_integer(std::string_view key, const json& value) const {
  if (!value.is_number_integer()) reject(key, "an integer", brief(value));
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) reject(key, "an integer", brief(value));
  return value.get<int64_t>();
}

double ConfigFields::to_number(std::string_view key, const json& value) const {
  if (!value.is_number()) reject(key, "a number", brief(value));
  return value.get<double>();
}

}  // namespace strata
