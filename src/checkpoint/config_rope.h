// The rotary embedding as config.json describes it: V4 specification 5.4, MLA specification 6.
#pragma once

#include "checkpoint/config_fields.h"
#include "strata/model_config.h"

namespace strata {

// Reads rope_theta, rope_scaling, rope_parameters, compress_rope_theta and partial_rotary_factor into `c`, whose family and head_dim are
// known, and qk_rope_head_dim. Adds unknown keys to `unknown`. Throws invalid_file where two of them contradict each other.
void read_rope(ModelConfig& c, const ConfigFields& f, const std::vector<std::string>& accepted, std::vector<std::string>& unknown);

}  // namespace strata
