// The orthonormal Hadamard rotation (formats/hadamard.h) of vectors whose runs belong to consecutive items.
#pragma once

#include "backends/opencl/device/cache.h"

namespace strata::opencl {

// Vectors have `columns` values, a power of two, or 0 for no rotation. Item `run` of a vector has values [8 * run, 8 * run + 8). All items
// of the work-group call it. `row`: the vector's floats in local memory, one run per item. scale: 1 / sqrt(columns).
inline void hadamard_runs(float* values, int run, int columns, float scale, __local float* row) {
#pragma unroll
  for (int distance = 1; distance < kRun; distance *= 2) {
    if (distance < columns) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        if ((i & distance) == 0) {
          const float a = values[i], b = values[i + distance];
          values[i] = a + b;
          values[i + distance] = a - b;
        }
      }
    }
  }
  for (int distance = 1; distance < columns / kRun; distance *= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int i = 0; i < kRun; ++i) row[run * kRun + i] = values[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    const float sign = (run & distance) == 0 ? 1.0f : -1.0f;
#pragma unroll
    for (int i = 0; i < kRun; ++i) values[i] = fma(sign, values[i], row[(run ^ distance) * kRun + i]);
  }
  if (columns > 0) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) values[i] *= scale;
  }
}

}  // namespace strata::opencl
