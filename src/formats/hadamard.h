// The orthonormal Sylvester-Hadamard rotation of indexer vectors: V4 specification 10.5, MLA specification 11.3.
// Usable from host and CUDA code.
#pragma once

#include <cstdint>

#include "formats/macros.h"

namespace strata {

// x := H_n x / sqrt(n) in place, n a power of two. T is float or double. Symmetric and its own inverse. The vectors of the model are
// rounded to bf16 before and after it.
template <class T>
STRATA_HOST_DEVICE constexpr void hadamard(T* x, int64_t n) {
  // 1/sqrt(n) is a power of two times at most one factor 1/sqrt(2).
  T scale = 1;
  int64_t rest = n;
  for (; rest >= 4; rest /= 4) scale *= T(0.5);
  if (rest == 2) scale *= T(0.70710678118654752440);
  for (int64_t distance = 1; distance < n; distance *= 2) {
    for (int64_t begin = 0; begin < n; begin += 2 * distance) {
      for (int64_t i = begin; i < begin + distance; ++i) {
        const T a = x[i];
        const T b = x[i + distance];
        x[i] = a + b;
        x[i + distance] = a - b;
      }
    }
  }
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

}  // namespace strata
