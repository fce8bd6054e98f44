// Runs: eight consecutive values of a bf16 row, one run per item. A run may begin before the row or end after it.
#pragma once

#include "backends/opencl/device/cache.h"
#include "backends/opencl/device/convert.h"
#include "backends/opencl/device/memory.h"
#include "formats/bf16.h"

namespace strata::opencl {

inline bool is_whole_run(int begin, int columns) { return begin >= 0 && begin + kRun <= columns; }

// Values outside the row are 0.
inline void load_run(const __global uint16_t* row, int begin, int columns, float* values) {
  if (is_whole_run(begin, columns)) return load8(row + begin, ((uint64_t)(row + begin) & 15) == 0, values);
#pragma unroll
  for (int i = 0; i < kRun; ++i) values[i] = begin + i >= 0 && begin + i < columns ? to_float(Bf16{row[begin + i]}) : 0.0f;
}

inline void store_run(__global uint16_t* row, int begin, int columns, uint4 words) {
  if (is_whole_run(begin, columns)) return store8(row + begin, ((uint64_t)(row + begin) & 15) == 0, words);
  store_some(row + begin, -begin, columns - begin, words);
}
inline void store_run(__global uint16_t* row, int begin, int columns, const float* values) {
  store_run(row, begin, columns, bf16_run(values));
}
inline void store_run(__global uint8_t* row, int begin, int columns, uint2 words) {
  if (is_whole_run(begin, columns)) return store8(row + begin, ((uint64_t)(row + begin) & 7) == 0, words);
  store_some(row + begin, -begin, columns - begin, words);
}

// Rotates the interleaved pairs of a run. rope_begin: the rotary dimension of its first value, even; negative if that value comes before
// them. Values outside the `rotary` dimensions are unchanged. cos_sin: a row of the table.
inline void rotate_run(float* values, int rope_begin, int rotary, const __global float* cos_sin) {
  float angles[kRun];  // four cosines, then four sines
  if (rope_begin >= 0 && rope_begin + kRun <= rotary && (((uint64_t)(cos_sin + rope_begin / 2) | (uint64_t)(2 * rotary)) & 15) == 0) {
    const float4 c = *(const __global float4*)(cos_sin + rope_begin / 2),
                 s = *(const __global float4*)(cos_sin + rotary / 2 + rope_begin / 2);
    angles[0] = c.x, angles[1] = c.y, angles[2] = c.z, angles[3] = c.w;
    angles[4] = s.x, angles[5] = s.y, angles[6] = s.z, angles[7] = s.w;
  } else {
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) {
      const int pair = rope_begin / 2 + i;
      const bool is_rotary = pair >= 0 && pair < rotary / 2;
      angles[i] = is_rotary ? cos_sin[pair] : 1.0f;
      angles[kRun / 2 + i] = is_rotary ? cos_sin[rotary / 2 + pair] : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kRun / 2; ++i) {
    const float first = values[2 * i], second = values[2 * i + 1], c = angles[i], s = angles[kRun / 2 + i];
    values[2 * i] = fma(first, c, -(second * s));
    values[2 * i + 1] = fma(second, c, first * s);
  }
}

// Stores the values of a run that are columns of the row, as store_row writes them. Only for formats without block scales.
inline void store_partial_run(const CacheView& view, const RowBytes& row, int begin, const float* values, StoreOptions options) {
  const float inverse = 1.0f / view.scale;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const int column = begin + i;
    if (column < 0 || column >= view.row_dim) continue;
    if ((KvFormat)view.format == KvFormat::fp8_tensor) {
      row.data[column] = (uint8_t)e4m3_bits(options.divide ? values[i] / view.scale : values[i] * inverse);
    } else {
      const uint32_t bits = bf16_bits(values[i]);
      row.data[2 * column] = (uint8_t)bits;
      row.data[2 * column + 1] = (uint8_t)(bits >> 8);
    }
  }
}

}  // namespace strata::opencl
