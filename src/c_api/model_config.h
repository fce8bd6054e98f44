// What the functions of configs and checkpoints share.
#pragma once

#include "strata/c/model_config.h"
#include "strata/model_config.h"

namespace strata::c_api {

// A null pointer: no options.
ConfigOptions to_config_options(const strata_config_options* options);

}  // namespace strata::c_api
