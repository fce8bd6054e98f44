// What a layer refuses: a context that it cannot be made from, and arguments of a forward that do not fit it. Nothing has been written when
// one of these throws.
#pragma once

#include "strata/attention.h"

namespace strata {

// The model has such a layer, its own or one that predicts.
void check_layer_number(const ModelConfig& config, int64_t layer);

// What layers of every family ask of their context, whose device LayerRegistry::make has asked for; returns its options.
const LayerOptions& check_context(const LayerContext& context);

// q_dim and attn_out_dim: lanes of a head in the taps.
void check_forward(const AttentionLayer& layer, const ForwardArgs& args, DeviceId device, const BatchLimits& limits, int64_t q_dim,
                   int64_t attn_out_dim);

}  // namespace strata
