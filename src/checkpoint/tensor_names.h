// How attention tensors are spelled in checkpoints: V4 specification 4.1, MLA specification 3.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/model_config.h"

namespace strata {

// The official prefix of a layer's tensors: "layers.3.attn.", "mtp.0.attn.", "model.layers.3.self_attn.".
std::string official_prefix(const ModelConfig& config, int64_t layer);

// Every full name that the tensor may have, the official one first.
std::vector<std::string> tensor_spellings(const ModelConfig& config, int64_t layer, std::string_view suffix);

// The layer that a full name belongs to; none when it is no attention tensor.
std::optional<int64_t> attention_layer_of(const ModelConfig& config, std::string_view name);

}  // namespace strata
