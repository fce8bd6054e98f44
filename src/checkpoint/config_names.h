// architectures and model_type of config.json: identifies the model.
#pragma once

#include <nlohmann/json.hpp>

#include "checkpoint/config_fields.h"
#include "strata/model_config.h"

namespace strata {

// Reads the names into `c`, and the family that they stand for. Throws invalid_file for a model that is not known, and for names of
// different models.
void read_names(ModelConfig& c, const ConfigFields& f, const ConfigOptions& options);

// Checks the names of a config that the language model of `c` is nested in: any but those of another model that is known.
void check_outer_names(const ModelConfig& c, const ConfigFields& outer, const std::string& inner);

}  // namespace strata
