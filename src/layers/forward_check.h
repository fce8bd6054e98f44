// What a layer refuses: a context that it cannot be made from, and invalid arguments of a forward. When one of these throws, nothing has
// been written.
#pragma once

#include "strata/attention.h"

namespace strata {

// The model must have this layer, a main layer or an MTP layer.
void check_layer_number(const ModelConfig& config, int64_t layer);

// Checks of the context that layers of every family make after LayerRegistry::make has required the device. Returns the context's options.
const LayerOptions& check_context(const LayerContext& context);

// q_dim and attn_out_dim: dimensions of a head in the taps.
void check_forward(const AttentionLayer& layer, const ForwardArgs& args, DeviceId device, const BatchLimits& limits, int64_t q_dim,
                   int64_t attn_out_dim);

}  // namespace strata
