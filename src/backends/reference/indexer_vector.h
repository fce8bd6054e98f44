// Prepares a vector of the indexer for its quantisation.
#pragma once

#include <array>
#include <cstdint>

#include "formats/bf16.h"
#include "contracts/indexer_limits.h"

namespace strata::reference {

using IndexerVector = std::array<double, ops::kMaxIndexerDim>;

inline void round_to_bf16(IndexerVector& x, int64_t n) {
  for (int64_t d = 0; d < n; ++d) x[d] = to_float(to_bf16(static_cast<float>(x[d])));
}

}  // namespace strata::reference
