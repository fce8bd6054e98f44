// Models by the names in config.json: those whose attention this library computes, and those whose attention only resembles it.
#pragma once

#include <string_view>

#include "strata/model_config.h"

namespace strata {

// A model that has latent or compressed attention with an addition.
struct LookalikeModel {
  std::string_view model_type;
  std::string_view architecture;
  std::string_view difference;  // follows "its attention has": "a sigmoid gate before the output projection"
};

// Null: not in the list. A model_type takes precedence over an architecture, which custom code may rename.
const SupportedModel* find_supported_model(std::string_view model_type, std::string_view architecture);
const LookalikeModel* find_lookalike_model(std::string_view model_type, std::string_view architecture);

// True for the same model under another head: DeepseekV3Model and DeepseekV3ForSequenceClassification of DeepseekV3ForCausalLM.
bool is_head_of(std::string_view architecture, std::string_view of);

// True for an MLA model whose attention is sparse in every release.
bool has_indexer(const SupportedModel& model);

// "deepseek_v2, deepseek_v3, ...", for messages.
std::string supported_model_types();

// Throws unsupported, naming the known ones, unless the library has layers for the config's model.
void require_supported_model(const ModelConfig& config);

}  // namespace strata
