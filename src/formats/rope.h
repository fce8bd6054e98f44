// Rotates one vector's rotary dimensions: V4 specification 5.4, MLA specification 6.2. Usable from host and CUDA code.
#pragma once

#include <cstdint>

#include "formats/macros.h"
#include "strata/ops/rope_slice.h"

namespace strata {

template <class T>
struct RopePair {
  T first;
  T second;
};

// The elements of pair i within a slice of `dim` rotary dimensions.
STRATA_HOST_DEVICE constexpr int64_t rope_first(int64_t i, int64_t dim, RopePairing pairing) {
  (void)dim;
  return pairing == RopePairing::interleaved ? 2 * i : i;
}
STRATA_HOST_DEVICE constexpr int64_t rope_second(int64_t i, int64_t dim, RopePairing pairing) {
  return pairing == RopePairing::interleaved ? 2 * i + 1 : i + dim / 2;
}

// Rotates pair i by the angle whose table row is cos_sin: dim/2 cosines, then dim/2 sines. `inverse` rotates back.
template <class T>
STRATA_HOST_DEVICE constexpr RopePair<T> rotate_pair(T first, T second, const float* cos_sin, int64_t i, int64_t dim, bool inverse) {
  const T c = cos_sin[i];
  const T s = inverse ? -cos_sin[dim / 2 + i] : cos_sin[dim / 2 + i];
  return {first * c - second * s, second * c + first * s};
}

// Rotates the `dim` rotary dimensions at `slice` in place. T is float or double.
template <class T>
STRATA_HOST_DEVICE constexpr void rotate(T* slice, const float* cos_sin, int64_t dim, RopePairing pairing, bool inverse = false) {
  for (int64_t i = 0; i < dim / 2; ++i) {
    T& first = slice[rope_first(i, dim, pairing)];
    T& second = slice[rope_second(i, dim, pairing)];
    const RopePair<T> turned = rotate_pair(first, second, cos_sin, i, dim, inverse);
    first = turned.first;
    second = turned.second;
  }
}

}  // namespace strata
