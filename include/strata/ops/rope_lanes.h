// Where a vector's rotary lanes are, and which of them form a pair: V4 specification 5.4, MLA specification 6.
#pragma once

#include <cstdint>

namespace strata {

// Which elements of the rotary slice form pair i.
enum class RopePairing : uint8_t {
  interleaved,  // (2i, 2i+1): V4, MLA main path
  half_split,   // (i, i + R/2): the V3.2 indexer
};
// Where the rotary slice is.
enum class RopeLanes : uint8_t { last, first };

}  // namespace strata
