// quantization_config of config.json: how the attention weights are quantised, if they are.
#pragma once

#include "checkpoint/config_fields.h"
#include "strata/model_config.h"

namespace strata {

// Reads `q` into `c`, whose family and q_lora_rank are known. FP8 with one scale a block and dynamic activations is read whoever wrote it.
// Any other quantiser must be a known one that leaves every matrix of attention alone, of which only the name is kept.
void read_quantization(ModelConfig& c, const ConfigFields& q, const std::vector<std::string>& accepted, std::vector<std::string>& unknown);

}  // namespace strata
