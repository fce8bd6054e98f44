// A language model that config.json nests in another object, as models of several modalities do.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/config_fields.h"
#include "strata/model_config.h"

namespace strata {

// Finds the object that describes the language model: `root` or one in it. Throws invalid_file where several do.
class NestedModel {
 public:
  NestedModel(const nlohmann::json& root, const std::string& origin);

  const ConfigFields& fields() const { return inner_; }

  // Checks the keys around a nested model, of which `c` has the names: those that it has too must have the same values, others that
  // attention depends on must not be there. Adds unknown ones to `unknown`. Does nothing when `root` is the model.
  void check_outer(const ModelConfig& c, const std::vector<std::string>& accepted, std::vector<std::string>& unknown) const;

  // quantization_config, which a quantiser may have written next to the nested model.
  std::optional<ConfigFields> quantization() const;

 private:
  NestedModel(const nlohmann::json& root, const std::string& origin, const char* name);
  void check_known_key(const ConfigKey& key, const std::string& name, const nlohmann::json& value) const;

  const char* name_;  // of the nested model; null: `root` is it
  ConfigFields outer_, inner_;
};

}  // namespace strata
