// Requirements on the model and the options, independent of weights: `strata plan` and layers refuse the same.
#pragma once

#include "strata/attention.h"

namespace strata {

// Throws invalid_argument for options that are invalid or do not suit the family, unsupported for sizes and formats that no layer has.
void check_layer_options(const ModelConfig& config, const LayerOptions& options);

}  // namespace strata
