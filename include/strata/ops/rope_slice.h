// Which dimensions of a vector are rotated, and how they are paired. V4 specification 5.4, MLA specification 6.
#pragma once

#include <cstdint>

namespace strata {

// The two elements of the rotary slice that form pair i.
enum class RopePairing : uint8_t {
  interleaved,  // (2i, 2i+1): V4, MLA main path
  half_split,   // (i, i + R/2): the V3.2 indexer
};
// The rotary slice.
enum class RopeSlice : uint8_t {
  last,   // the last R dimensions
  first,  // the first R dimensions
};

}  // namespace strata
