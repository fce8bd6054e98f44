// What a layer needs of the model and of its options, whatever its weights are: `strata plan` and a layer refuse the same.
#pragma once

#include "strata/attention.h"

namespace strata {

// Throws invalid_argument for options that cannot be or do not go with the family, unsupported for sizes and formats that no layer has.
void check_layer_options(const ModelConfig& config, const LayerOptions& options);

}  // namespace strata
