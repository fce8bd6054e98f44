// Every key of config.json that this library knows, and its relation to attention.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/model_config.h"

namespace strata {

// The JSON object that a key stands in.
enum class KeyScope : uint8_t {
  model,         // config.json itself, or the text_config that the language model is nested in
  rope,          // rope_scaling, rope_parameters, and main and compress of V4's rope_parameters
  outer,         // config.json around a text_config; the keys of `model` scope are known there too
  quantization,  // quantization_config of block FP8 as DeepSeek writes it
  quantiser,     // quantization_config of any other quantiser
  group,         // one entry of compressed-tensors' config_groups whose matrices are attention's
  group_values,  // its weights and input_activations
};

enum class KeyEffect : uint8_t {
  honoured,   // ModelConfig::parse reads it
  must_be,    // only the attention with this value is computed here; another value is refused
  no_effect,  // attention is the same whatever its value
};

struct ConfigKey {
  KeyScope scope;
  std::string_view name;  // a last '*' stands for any text
  KeyEffect effect;
  bool v4;                   // known to V4's configs
  bool mla;                  // known to those of MLA
  std::string_view value{};  // must_be: JSON
};

std::span<const ConfigKey> config_keys();

// The table's entry for a key; null: the family has no such key.
const ConfigKey* find_config_key(KeyScope scope, std::string_view name, ModelFamily family);

// True for an unknown key whose name suggests that attention depends on it.
bool suggests_attention(std::string_view name);

// Checks every key of `object`. Throws invalid_file for a key whose value must be another one, and for an unknown key that cannot be
// passed over: any in `rope`, `group` and `group_values` scope, in the others one that suggests_attention; unless `accepted` has it. Other
// unknown keys, and accepted ones, are added to `unknown`. `prefix` is the object's place in the file, "rope_scaling." or "".
//
// check_config_value: of a key whose value must be another one, alone. refuse_or_list: of an unknown key, alone.
void check_config_value(const ConfigKey& key, const nlohmann::json& value, const std::string& origin, const std::string& full_name);
void refuse_or_list(const std::string& full_name, const nlohmann::json& value, bool refuse, const std::string& origin,
                    const std::vector<std::string>& accepted, std::vector<std::string>& unknown);
void check_config_keys(const nlohmann::json& object, KeyScope scope, ModelFamily family, const std::string& origin,
                       const std::string& prefix, const std::vector<std::string>& accepted, std::vector<std::string>& unknown);

}  // namespace strata
