// The check of every value of a ModelConfig.
#pragma once

#include <string>

#include "strata/model_config.h"

namespace strata {

// Throws invalid_file; `origin` begins the message.
void check_model_config(const ModelConfig& config, const std::string& origin);

}  // namespace strata
