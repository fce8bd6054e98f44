// quantization_config of config.json: how the attention weights are quantised, if they are.
#pragma once

#include "checkpoint/config_fields.h"
#include "strata/model_config.h"

namespace strata {

// Reads `q` into `c`. FP8 with one scale a block and dynamic activations is read whoever wrote it; of any other quantiser only the name is
// kept, as it may have left attention alone.
void read_quantization(ModelConfig& c, const ConfigFields& q, const std::vector<std::string>& accepted, std::vector<std::string>& unknown);

}  // namespace strata
