// The matrices that a quantization_config excludes, and those that its groups cover.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/config_fields.h"
#include "strata/model_config.h"

namespace strata {

// The contents of the keys for excluded matrices: names, globs and "re:" patterns of `q`, of KeyScope::quantiser.
std::vector<std::string> excluded_modules(const ConfigFields& q);

// A matrix of attention that none of `excluded` names; empty: all of attention is excluded. Layers are not distinguished, because the
// loader looks at the tensors of each.
std::string quantised_attention_matrix(const ModelConfig& c, const std::vector<std::string>& excluded);

// How a group's `targets` name attention. "Linear" names every matrix that no other group names.
enum class Reach : uint8_t { none, everything, attention };
Reach reach_of(const std::vector<std::string>& targets);

}  // namespace strata
