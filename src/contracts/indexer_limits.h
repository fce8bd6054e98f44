#pragma once

#include <cstdint>

namespace strata::ops {

// Vectors of the indexer are 128 wide in every model; longer ones than this do not fit the kernels' registers and stacks.
inline constexpr int64_t kMaxIndexerDim = 512;

}  // namespace strata::ops
