// Which tensors a layer's attention may have in a checkpoint: V4 specification 4.1, MLA specification 3.
#pragma once

#include "strata/checkpoint.h"

namespace strata {

// Throws invalid_file when the checkpoint has an attention tensor of the layer that the layer does not read: a bias, a sink, an adapter, a
// gate. Such a tensor belongs to another attention, whose results would be others.
void check_layer_tensors(const Checkpoint& checkpoint, int64_t layer);

}  // namespace strata
