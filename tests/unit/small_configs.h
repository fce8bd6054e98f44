// Small models as config.json, for the tests of what their keys do.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint_files.h"
#include "strata/model_config.h"

namespace strata::test {

using nlohmann::json;

// They have every feature of their family.
inline json v4() {
  ModelConfig c = preset("v4-tiny");
  c.num_nextn_predict_layers = 1;
  return json::parse(c.to_json());
}
inline json mla() {
  ModelConfig c = preset("v3.2-tiny");
  c.index_topk_freq = 1;
  json j = json::parse(c.to_json());
  j.erase("num_key_value_heads");  // it is num_attention_heads, which a test changes
  return j;
}
inline json base(ModelFamily family) { return family == ModelFamily::deepseek_v4 ? v4() : mla(); }
inline ModelConfig parse(const json& j, const ConfigOptions& options = {}) {
  return ModelConfig::parse(j.dump(), "the/config.json", options);
}
inline std::string refusal(const json& j, const ConfigOptions& options = {}) {
  return message_of(ErrorCode::invalid_file, [&] { parse(j, options); });
}

}  // namespace strata::test
