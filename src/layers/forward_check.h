// Whether the arguments of a forward fit the layer. Nothing has been written when this throws.
#pragma once

#include "strata/attention.h"

namespace strata {

// q_dim and attn_out_dim: lanes of a head in the taps.
void check_forward(const AttentionLayer& layer, const ForwardArgs& args, DeviceId device, const BatchLimits& limits, int64_t q_dim,
                   int64_t attn_out_dim);

}  // namespace strata
