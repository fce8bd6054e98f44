// Grid sizes.
#pragma once

#include <cstdint>

namespace strata::cuda {

// CTAs for `items` units of work, `per_block` each. Kernels number the units in 31 bits (2^31 rows of a model's width do not fit in
// memory): throws unsupported beyond that.
unsigned blocks_for(int64_t items, int64_t per_block);

}  // namespace strata::cuda
