// Loads and stores rows of a paged cache in runs of eight values, one item per run. Bytes are as in formats/kv_rows.h.
#pragma once

#include "backends/opencl/device/cache_view.h"
#include "backends/opencl/device/convert.h"
#include "backends/opencl/device/memory.h"
#include "formats/kv_rows.h"

namespace strata::opencl {

constexpr int kRun = 8;  // consecutive values per item

// The address of a row.
struct RowBytes {
  __global uint8_t* data;
  __global uint8_t* scales;
};
inline RowBytes row_bytes_of(const CacheView& view, int64_t slot) {
  // A 32-bit division is several times faster than a 64-bit one.
  const int64_t page = slot < 0x80000000L ? (uint32_t)slot / (uint32_t)view.page_size : slot / view.page_size;
  const int64_t row = slot - page * view.page_size, row_bytes = row_data_bytes((KvFormat)view.format, view.row_dim);
  __global uint8_t* const begin = at<uint8_t>(view.data) + page * view.page_stride;
  return {begin + row * row_bytes, begin + view.page_size * row_bytes + row * row_scale_bytes((KvFormat)view.format)};
}

inline void decode_bf16(const __global uint8_t* bytes, float* values) { unpack8(load_words4(bytes), values); }
inline void decode_e4m3(const __global uint8_t* bytes, float scale, float* values) {
  const uint2 words = load_words2(bytes);
  const uint32_t w[2] = {words.x, words.y};
#pragma unroll
  for (int i = 0; i < kRun; ++i) values[i] = e4m3_value(w[i / 4] >> i % 4 * 8) * scale;
}
inline void decode_e2m1(const __global uint8_t* bytes, float scale, float* values) {
  const uint32_t word = load_word(bytes);
#pragma unroll
  for (int i = 0; i < kRun; ++i) values[i] = e2m1_value(word >> i * 4) * scale;
}
inline float scale_f32(const __global uint8_t* bytes) { return as_float(load_word(bytes)); }

// Values [column, column + 8) of a row, as load_row returns them. column is a multiple of 8.
inline void load_values(const CacheView& view, const RowBytes& row, int column, float* values) {
  switch ((KvFormat)view.format) {
    case KvFormat::bf16: return decode_bf16(row.data + 2 * column, values);
    case KvFormat::fp8_tensor: return decode_e4m3(row.data + column, view.scale, values);
    case KvFormat::fp8_ds_mla_v4:
      if (column >= kV4NopeDim) return decode_bf16(row.data + kV4NopeDim + 2 * (column - kV4NopeDim), values);
      return decode_e4m3(row.data + column, e8m0_value(row.scales[column / kKvBlock]), values);
    case KvFormat::fp8_ds_mla:
      if (column >= kMlaLatentDim) return decode_bf16(row.data + kMlaRopeOffset + 2 * (column - kMlaLatentDim), values);
      decode_e4m3(row.data + column, scale_f32(row.data + kMlaScaleOffset + 4 * (column / kMlaTile)), values);
#pragma unroll
      for (int i = 0; i < kRun; ++i) values[i] = nearest_bf16(values[i]);
      return;
    case KvFormat::indexer_fp8: return decode_e4m3(row.data + column, scale_f32(row.scales), values);
    case KvFormat::indexer_mxfp4: return decode_e2m1(row.data + column / 2, e8m0_value(row.scales[column / kMxfp4Block]), values);
    case KvFormat::state_f32: {
      const float4 low = as_float4(load_words4(row.data + 4 * column)), high = as_float4(load_words4(row.data + 4 * column + 16));
      values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
      values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
      return;
    }
  }
}

inline void store_bf16(__global uint8_t* bytes, const float* values) { store_words(bytes, bf16_run(values)); }

// The absmax of the block of kBlock values that contains `column`.
template <int kBlock>
inline float block_top(const __local float* largest, int column, float floor) {
  return largest_of<kBlock / kRun>(largest + column / kBlock * (kBlock / kRun), floor);
}

// Stores values [column, column + 8) of a row, as store_row writes them. column is a multiple of 8. All items of the work-group call it,
// because it has two barriers; items without values pass has_values = false. Each run of a row belongs to one item. `largest`: local memory
// with one float per run of this row; at a multiple of 16 bytes if the format has blocks. The first item of a block writes its scale.
inline void store_values(const CacheView& view, const RowBytes& row, int column, bool has_values, const float* values, StoreOptions options,
                         __local float* largest) {
  float rounded[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) rounded[i] = has_values ? nearest_bf16(values[i]) : 0.0f;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (has_values) largest[column / kRun] = largest_magnitude(rounded);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (!has_values) return;
  switch ((KvFormat)view.format) {
    case KvFormat::bf16: return store_bf16(row.data + 2 * column, values);
    case KvFormat::state_f32: {
      store_words(row.data + 4 * column, as_uint4((float4)(values[0], values[1], values[2], values[3])));
      return store_words(row.data + 4 * column + 16, as_uint4((float4)(values[4], values[5], values[6], values[7])));
    }
    case KvFormat::fp8_tensor: {
      if (!options.divide) return store_words(row.data + column, e4m3_run(values, 1.0f / view.scale));
      float divided[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) divided[i] = values[i] / view.scale;
      return store_words(row.data + column, e4m3_run(divided, 1.0f));
    }
    case KvFormat::fp8_ds_mla_v4: {
      if (column >= kV4NopeDim) return store_bf16(row.data + kV4NopeDim + 2 * (column - kV4NopeDim), values);
      const int exponent = block_exponent(block_top<kKvBlock>(largest, column, kKvAmaxFloor));
      store_words(row.data + column, e4m3_run(rounded, pow2(-exponent)));
      if (column % kKvBlock == 0) row.scales[column / kKvBlock] = to_e8m0(exponent).bits;
      if (column == 0) row.scales[kV4NumBlocks] = 0;
      return;
    }
    case KvFormat::fp8_ds_mla: {
      if (column >= kMlaLatentDim) return store_bf16(row.data + kMlaRopeOffset + 2 * (column - kMlaLatentDim), values);
      // As quantize_mla_tile.
      float scale = 0.0f, factor = 1.0f;
      if (options.ue8m0) {
        const int exponent = block_exponent(block_top<kMlaTile>(largest, column, kKvAmaxFloor));
        scale = e8m0_value(to_e8m0(exponent).bits), factor = pow2(-exponent);
      } else {
        scale = fmax(block_top<kMlaTile>(largest, column, 0.0f) / kE4m3Max, 0x1p-126f);
#pragma unroll
        for (int i = 0; i < kRun; ++i) rounded[i] /= scale;
      }
      store_words(row.data + column, e4m3_run(rounded, factor));
      if (column % kMlaTile == 0) store_words(row.data + kMlaScaleOffset + 4 * (column / kMlaTile), as_uint(scale));
      return;
    }
    case KvFormat::indexer_fp8: {
      const int exponent = block_exponent(block_top<kIndexerDim>(largest, column, kKvAmaxFloor));
      store_words(row.data + column, e4m3_run(rounded, pow2(-exponent)));
      if (column == 0) store_words(row.scales, as_uint(e8m0_value(to_e8m0(exponent).bits)));
      return;
    }
    case KvFormat::indexer_mxfp4: {
      // As quantize_mxfp4_block.
      const int exponent = mxfp4_exponent(block_top<kMxfp4Block>(largest, column, 6 * 0x1p-126f));
      store_words(row.data + column / 2, e2m1_run(rounded, pow2(-exponent)));
      if (column % kMxfp4Block == 0) row.scales[column / kMxfp4Block] = to_e8m0(exponent).bits;
      return;
    }
  }
}

}  // namespace strata::opencl
