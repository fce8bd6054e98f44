#include "backends/cuda/runtime/grid.h"

#include "core/ceil_div.h"
#include "core/check.h"

namespace strata::cuda {

unsigned blocks_for(int64_t items, int64_t per_block) {
  if (items > INT32_MAX) fail(ErrorCode::unsupported, "CUDA: a call must have fewer than 2^31 pieces of work, has {}", items);
  return static_cast<unsigned>(ceil_div(items, per_block));
}

}  // namespace strata::cuda
