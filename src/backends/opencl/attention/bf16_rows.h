// Key rows as pairs of bf16, eight values at a time. Exact for every format; the scale of fp8_tensor is left to the caller (`factor`).
#pragma once

#include <cstdint>

#include "backends/opencl/device/cache.h"
#include "backends/opencl/device/e4m3_words.h"

namespace strata::opencl {

// The address of a row. Its values are those of `format` times `factor`. A missing row has factor 0.
struct RowAddress {
  const __global uint8_t* data;
  const __global uint8_t* scales;
  KvFormat format;
  float factor;
  bool is_aligned() const { return ((uint64_t)data & 15) == 0; }
};

inline RowAddress no_row() { return {nullptr, nullptr, KvFormat::bf16, 0.0f}; }
inline RowAddress row_address(const CacheView& view, int64_t page, int row) {
  const KvFormat format = (KvFormat)view.format;
  const int64_t row_bytes = row_data_bytes(format, view.row_dim);
  const __global uint8_t* begin = at<const uint8_t>(view.data) + page * view.page_stride;
  return {begin + row * row_bytes, begin + view.page_size * row_bytes + row * row_scale_bytes(format), format,
          format == KvFormat::fp8_tensor ? view.scale : 1.0f};
}
inline RowAddress row_address(const CacheView& view, int slot) {
  const uint32_t size = view.page_size;
  return row_address(view, (uint32_t)slot / size, (uint32_t)slot % size);
}

// Loads `count` values of 2 bytes; the others are 0.
inline uint4 load_few(const __global uint8_t* from, int count) {
  uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (i < count) words[i / 2] |= (uint32_t)(from[2 * i] | from[2 * i + 1] << 8) << 16 * (i % 2);
  }
  return (uint4)(words[0], words[1], words[2], words[3]);
}
inline uint4 load_few(const __global uint16_t* from, int count) {
  uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (i < count) words[i / 2] |= (uint32_t)from[i] << 16 * (i % 2);
  }
  return (uint4)(words[0], words[1], words[2], words[3]);
}
// Loads `count` bytes; the others are 0.
inline uint2 load_few_bytes(const __global uint8_t* from, int count) {
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (i < count) words[i / 4] |= (uint32_t)from[i] << 8 * (i % 4);
  }
  return (uint2)(words[0], words[1]);
}

// The address of column `column` if the row stores it as bf16, null if as e4m3.
inline const __global uint8_t* bf16_values(const RowAddress& row, int column) {
  switch (row.format) {
    case KvFormat::bf16: return row.data + 2 * column;
    case KvFormat::fp8_ds_mla_v4: return column < kV4NopeDim ? nullptr : row.data + kV4NopeDim + 2 * (column - kV4NopeDim);
    case KvFormat::fp8_ds_mla: return column < kMlaLatentDim ? nullptr : row.data + kMlaRopeOffset + 2 * (column - kMlaLatentDim);
    default: return nullptr;
  }
}
// The scale of the e4m3 value at `column`; 1 for fp8_tensor.
inline float scale_of(const RowAddress& row, int column) {
  if (row.format == KvFormat::fp8_ds_mla_v4) return to_float(E8m0{row.scales[column / kKvBlock]});
  if (row.format == KvFormat::fp8_ds_mla) return scale_f32(row.data + kMlaScaleOffset + 4 * (column / kMlaTile));
  return 1.0f;
}

// Columns [column, column + 8) as stored: bf16 values, or two words of e4m3 values and their scale.
// The row begins at a multiple of 16 bytes and has all eight columns.
inline uint4 load_aligned(const RowAddress& row, int column) {
  const __global uint8_t* bf16 = bf16_values(row, column);
  if (bf16 != nullptr) return *(const __global uint4*)bf16;
  const uint2 values = *(const __global uint2*)(row.data + column);
  return (uint4)(values.x, values.y, as_uint(scale_of(row, column)), 0);
}
// The same at any alignment; the row has `count` of the columns.
inline uint4 load_unaligned(const RowAddress& row, int column, int count) {
  const __global uint8_t* bf16 = bf16_values(row, column);
  if (bf16 != nullptr) return load_few(bf16, count);
  const uint2 values = load_few_bytes(row.data + column, count);
  return (uint4)(values.x, values.y, as_uint(scale_of(row, column)), 0);
}

inline uint4 decode(const RowAddress& row, int column, uint4 stored) {
  if (bf16_values(row, column) != nullptr) return stored;
  return decode_words(stored.xy, as_float(stored.z), row.format == KvFormat::fp8_ds_mla);
}

inline float low_of(uint32_t pair) { return as_float(pair << 16); }
inline float high_of(uint32_t pair) { return as_float(pair & 0xFFFF0000u); }

}  // namespace strata::opencl
