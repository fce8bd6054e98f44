#include "checkpoint/config_nested.h"

#include <algorithm>
#include <array>

#include "checkpoint/config_names.h"
#include "checkpoint/json.h"
#include "core/check.h"

namespace strata {
namespace {

using nlohmann::json;

// Where models of several modalities keep their language model.
constexpr auto kNestedModels = std::to_array<const char*>({"text_config", "language_config", "llm_config"});

// Keys of a config that say nothing of attention, although this library reads them.
constexpr auto kCommonKeys = std::to_array<std::string_view>({"architectures", "model_type", "quantization_config", "hidden_size"});

// A key that attention depends on.
bool describes_attention(const std::string& key, const json& value) {
  if (value.is_null() || std::find(kCommonKeys.begin(), kCommonKeys.end(), key) != kCommonKeys.end()) return false;
  for (const ModelFamily family : {ModelFamily::deepseek_v4, ModelFamily::deepseek_mla}) {
    const ConfigKey* known = find_config_key(KeyScope::model, key, family);
    if (known != nullptr && known->effect == KeyEffect::honoured) return true;
  }
  return false;
}

bool describes_attention(const json& object) {
  if (!object.is_object()) return false;
  const auto items = object.items();
  return std::any_of(items.begin(), items.end(), [](const auto& item) { return describes_attention(item.key(), item.value()); });
}

// Those of the names in kNestedModels whose objects describe a model's attention.
std::vector<const char*> nested_models(const json& object) {
  std::vector<const char*> found;
  for (const char* name : kNestedModels) {
    const auto it = object.find(name);
    if (it != object.end() && describes_attention(*it)) found.push_back(name);
  }
  return found;
}

[[noreturn]] void reject_second(const std::string& origin, const std::string& name, const std::string& first) {
  fail(ErrorCode::invalid_file, "{}: {}: expected one description of a model's attention, is another next to {}", origin, name, first);
}

const char* find_nested(const json& root, const std::string& origin) {
  const std::vector<const char*> found = nested_models(root);
  if (found.empty()) return nullptr;
  if (root.contains("num_attention_heads") && !root[found[0]].contains("num_attention_heads")) {
    reject_second(origin, found[0], "that of the file itself");
  }
  if (found.size() > 1) reject_second(origin, found[1], found[0]);
  const std::vector<const char*> deeper = nested_models(root[found[0]]);
  if (!deeper.empty()) reject_second(origin, fmt::format("{}.{}", found[0], deeper[0]), found[0]);
  return found[0];
}

}  // namespace

NestedModel::NestedModel(const json& root, const std::string& origin) : NestedModel(root, origin, find_nested(root, origin)) {}

NestedModel::NestedModel(const json& root, const std::string& origin, const char* name)
    : name_(name),
      outer_(root, KeyScope::model, origin),
      inner_(name == nullptr ? root : root[name], KeyScope::model, origin, name == nullptr ? "" : std::string(name) + ".") {}

void NestedModel::check_known_key(const ConfigKey& key, const std::string& name, const json& value) const {
  if (key.effect == KeyEffect::no_effect) return;
  const auto it = inner_.object().find(name);
  if (it != inner_.object().end() && !it->is_null()) {
    if (*it == value) return;
    outer_.reject(name, fmt::format("the same as {}{}, {}", inner_.prefix(), name, brief(*it)), brief(value));
  }
  if (key.effect == KeyEffect::must_be) return check_config_value(key, value, outer_.origin(), name);
  if (name != "quantization_config") outer_.reject(name, fmt::format("it in {}, which describes the model", name_), brief(value));
}

void NestedModel::check_outer(const ModelConfig& c, const std::vector<std::string>& accepted, std::vector<std::string>& unknown) const {
  if (name_ == nullptr) return;
  check_outer_names(c, outer_, name_);
  for (const auto& [name, value] : outer_.object().items()) {
    if (value.is_null() || name == name_ || name == "architectures" || name == "model_type") continue;
    if (const ConfigKey* key = find_config_key(KeyScope::model, name, c.family)) {
      check_known_key(*key, name, value);
    } else if (find_config_key(KeyScope::outer, name, c.family) == nullptr) {
      refuse_or_list(name, value, suggests_attention(name), outer_.origin(), accepted, unknown);
    }
  }
}

std::optional<ConfigFields> NestedModel::quantization() const {
  const ConfigFields& place = inner_.has("quantization_config") ? inner_ : outer_;
  return place.object("quantization_config", KeyScope::quantization);
}

}  // namespace strata
