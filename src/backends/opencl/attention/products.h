// The attention kernels' products of register tiles, in fp32.
#pragma once

#include <cstdint>

#include "backends/opencl/attention/bf16_rows.h"

namespace strata::opencl {

inline void unpack(uint4 run, float* values) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    values[2 * w] = low_of(run[w]);
    values[2 * w + 1] = high_of(run[w]);
  }
}

// Adds eight dimensions of the products of kQueries queries and one key to logits[query][number].
template <int kQueries>
inline void add_products(const float (*queries)[kRun], uint4 key, int number, float (*logits)[4]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float low = low_of(key[w]), high = high_of(key[w]);
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      logits[j][number] = fma(queries[j][2 * w + 1], high, fma(queries[j][2 * w], low, logits[j][number]));
    }
  }
}

// sums += weight * the eight values.
inline void add_weighted(float weight, uint4 values, float* sums) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[2 * i] = fma(weight, low_of(values[i]), sums[2 * i]);
    sums[2 * i + 1] = fma(weight, high_of(values[i]), sums[2 * i + 1]);
  }
}
// sums[j] += weights[j] * the eight values, for four heads or queries j.
inline void add_values(float4 weights, uint4 values, float (*sums)[kRun]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) add_weighted(weights[j], values, sums[j]);
}

}  // namespace strata::opencl
