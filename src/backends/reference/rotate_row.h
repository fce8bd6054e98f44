// Rotates the last dimensions of one vector: shared by the norm, insert and inverse ops.
#pragma once

#include "formats/rope.h"

namespace strata::reference {

// Calls store(i, value) for every element of a vector of `dim` values, value(i) being the unrotated element in double. Rotates interleaved
// pairs in the last `rotary` dimensions. In-place use is safe: both elements of a pair are read before either is stored.
template <class Value, class Store>
void rotate_last_lanes(int64_t dim, int64_t rotary, const float* cos_sin, bool inverse, const Value& value, const Store& store) {
  const int64_t begin = dim - rotary;
  for (int64_t i = 0; i < begin; ++i) store(i, value(i));
  for (int64_t i = 0; i < rotary / 2; ++i) {
    const int64_t first = begin + rope_first(i, rotary, RopePairing::interleaved);
    const int64_t second = begin + rope_second(i, rotary, RopePairing::interleaved);
    const RopePair<double> turned = rotate_pair<double>(value(first), value(second), cos_sin, i, rotary, inverse);
    store(first, turned.first);
    store(second, turned.second);
  }
}

}  // namespace strata::reference
