// Converts one row of a paged cache to and from fp32: every byte of every KvFormat. Layouts: V4 specification 6, MLA specification 9.1 and
// 11.9. Pages may have any stride and alignment. Usable from host and CUDA code (nvcc with --expt-relaxed-constexpr, for PagedCache).
#pragma once

#include <cstdint>

#include "formats/quantize.h"
#include "strata/kv_format.h"

namespace strata {

// The widest row of any cache: the C4A compressor state. Row buffers on a stack have this size.
inline constexpr int32_t kMaxRowDim = 2048;

// Records whose contents fix the number of values; 0: the format takes any.
STRATA_HOST_DEVICE constexpr int32_t fixed_row_dim(KvFormat format) {
  switch (format) {
    case KvFormat::fp8_ds_mla_v4: return 512;
    case KvFormat::fp8_ds_mla: return 576;
    case KvFormat::indexer_fp8:
    case KvFormat::indexer_mxfp4: return 128;
    default: return 0;
  }
}

// fp8_ds_mla_v4: dimensions 0..447 are e4m3 in seven blocks of 64, dimensions 448..511 bf16.
inline constexpr int kV4NopeDim = 448;
inline constexpr int kV4RopeDim = 64;
inline constexpr int kV4NumBlocks = kV4NopeDim / kKvBlock;
// fp8_ds_mla: 512 e4m3 values in four blocks of 128, their fp32 scales, 64 bf16.
inline constexpr int kMlaLatentDim = 512;
inline constexpr int kMlaRopeDim = 64;
inline constexpr int kMlaTile = 128;
inline constexpr int kMlaScaleOffset = kMlaLatentDim;
inline constexpr int kMlaRopeOffset = kMlaScaleOffset + 4 * (kMlaLatentDim / kMlaTile);
// Indexer rows.
inline constexpr int kIndexerDim = 128;

STRATA_HOST_DEVICE inline const uint8_t* row_data(const PagedCache& cache, int64_t slot) {
  return static_cast<const uint8_t*>(cache.data) + cache.data_offset(slot);
}
STRATA_HOST_DEVICE inline const uint8_t* row_scale(const PagedCache& cache, int64_t slot) {
  return static_cast<const uint8_t*>(cache.data) + cache.scale_offset(slot);
}

STRATA_HOST_DEVICE inline void load_bf16_values(const uint8_t* bytes, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_float(Bf16{load_u16(bytes + 2 * i)});
}
STRATA_HOST_DEVICE inline void store_bf16_values(const float* x, int64_t n, uint8_t* bytes) {
  for (int64_t i = 0; i < n; ++i) store_u16(bytes + 2 * i, to_bf16(x[i]).bits);
}
STRATA_HOST_DEVICE inline void load_codes(const uint8_t* codes, int64_t n, float scale, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_float(E4m3{codes[i]}) * scale;
}

// out[0, row_dim) = the row's values. They are exact with power-of-two scales. fp8_ds_mla with other scales gives the bf16 of MLA 9.1,
// fp8_tensor the fp32 product e4m3 value * scale.
STRATA_HOST_DEVICE inline void load_row(const PagedCache& cache, int64_t slot, float* out) {
  const uint8_t* data = row_data(cache, slot);
  switch (cache.format) {
    case KvFormat::bf16: load_bf16_values(data, cache.row_dim, out); return;
    case KvFormat::fp8_tensor: load_codes(data, cache.row_dim, cache.scale, out); return;
    case KvFormat::fp8_ds_mla_v4: {
      const uint8_t* scales = row_scale(cache, slot);
      for (int b = 0; b < kV4NumBlocks; ++b) {
        load_codes(data + b * kKvBlock, kKvBlock, to_float(E8m0{scales[b]}), out + b * kKvBlock);
      }
      load_bf16_values(data + kV4NopeDim, kV4RopeDim, out + kV4NopeDim);
      return;
    }
    case KvFormat::fp8_ds_mla:
      for (int i = 0; i < kMlaLatentDim; ++i) {
        const float scale = load_f32(data + kMlaScaleOffset + 4 * (i / kMlaTile));
        out[i] = round_to_bf16(to_float(E4m3{data[i]}) * scale);
      }
      load_bf16_values(data + kMlaRopeOffset, kMlaRopeDim, out + kMlaLatentDim);
      return;
    case KvFormat::indexer_fp8: load_codes(data, kIndexerDim, load_f32(row_scale(cache, slot)), out); return;
    case KvFormat::indexer_mxfp4: {
      const uint8_t* scales = row_scale(cache, slot);
      for (int i = 0; i < kIndexerDim; ++i) out[i] = e2m1_element(data, i) * to_float(E8m0{scales[i / kMxfp4Block]});
      return;
    }
    case KvFormat::state_f32:
      for (int64_t i = 0; i < cache.row_dim; ++i) out[i] = load_f32(data + 4 * i);
      return;
  }
}

// One value of a state row, for readers that need a few columns only.
STRATA_HOST_DEVICE inline float load_state(const PagedCache& state, int64_t slot, int64_t column) {
  return load_f32(row_data(state, slot) + 4 * column);
}

struct StoreOptions {
  bool ue8m0 = false;   // fp8_ds_mla: power-of-two scales
  bool divide = false;  // fp8_tensor: x / scale (MLA 9) instead of x * (1 / scale) (V4 6.5); the same for powers of two
};

// Writes the row's values, already rotated, from fp32. Each format rounds them as its specification says: all formats except fp8_tensor and
// state_f32 first to bf16, which does not change bf16 values. Scale padding is written as zero.
STRATA_HOST_DEVICE inline void store_row(const PagedCache& cache, int64_t slot, const float* x, StoreOptions options = {}) {
  uint8_t* data = static_cast<uint8_t*>(cache.data) + cache.data_offset(slot);
  uint8_t* scales = static_cast<uint8_t*>(cache.data) + cache.scale_offset(slot);
  float rounded[kMlaTile];
  E4m3 codes[kMlaTile];
  switch (cache.format) {
    case KvFormat::bf16: store_bf16_values(x, cache.row_dim, data); return;
    case KvFormat::fp8_tensor: {
      const float inverse = 1.0f / cache.scale;
      for (int64_t i = 0; i < cache.row_dim; ++i) data[i] = to_e4m3(options.divide ? x[i] / cache.scale : x[i] * inverse).bits;
      return;
    }
    case KvFormat::fp8_ds_mla_v4:
      for (int b = 0; b < kV4NumBlocks; ++b) {
        for (int i = 0; i < kKvBlock; ++i) rounded[i] = round_to_bf16(x[b * kKvBlock + i]);
        scales[b] = quantize_kv_block(rounded, codes).bits;
        for (int i = 0; i < kKvBlock; ++i) data[b * kKvBlock + i] = codes[i].bits;
      }
      scales[kV4NumBlocks] = 0;
      store_bf16_values(x + kV4NopeDim, kV4RopeDim, data + kV4NopeDim);
      return;
    case KvFormat::fp8_ds_mla:
      for (int t = 0; t < kMlaLatentDim / kMlaTile; ++t) {
        for (int i = 0; i < kMlaTile; ++i) rounded[i] = round_to_bf16(x[t * kMlaTile + i]);
        store_f32(data + kMlaScaleOffset + 4 * t, quantize_mla_tile(rounded, options.ue8m0, codes));
        for (int i = 0; i < kMlaTile; ++i) data[t * kMlaTile + i] = codes[i].bits;
      }
      store_bf16_values(x + kMlaLatentDim, kMlaRopeDim, data + kMlaRopeOffset);
      return;
    case KvFormat::indexer_fp8:
      for (int i = 0; i < kIndexerDim; ++i) rounded[i] = round_to_bf16(x[i]);
      store_f32(scales, quantize_indexer_fp8(rounded, kIndexerDim, kKvAmaxFloor, codes));
      for (int i = 0; i < kIndexerDim; ++i) data[i] = codes[i].bits;
      return;
    case KvFormat::indexer_mxfp4:
      for (int i = 0; i < kIndexerDim; ++i) rounded[i] = round_to_bf16(x[i]);
      for (int b = 0; b < kIndexerDim / kMxfp4Block; ++b) {
        scales[b] = quantize_mxfp4_block(rounded + b * kMxfp4Block, data + b * (kMxfp4Block / 2)).bits;
      }
      return;
    case KvFormat::state_f32:
      for (int64_t i = 0; i < cache.row_dim; ++i) store_f32(data + 4 * i, x[i]);
      return;
  }
}

// V4 specification 19.
namespace detail {
inline constexpr PagedCache kSwaPages{.format = KvFormat::fp8_ds_mla_v4, .row_dim = 512, .page_size = 64, .page_stride = 37440};
inline constexpr PagedCache kC128aPages{.format = KvFormat::fp8_ds_mla_v4, .row_dim = 512, .page_size = 2, .page_stride = 1728};
inline constexpr PagedCache kIndexerPages{.format = KvFormat::indexer_fp8, .row_dim = 128, .page_size = 64, .page_stride = 8640};
}  // namespace detail
static_assert(detail::kSwaPages.data_offset(130) == 76032 && detail::kSwaPages.scale_offset(130) == 111760);
static_assert(detail::kC128aPages.data_offset(3) == 2304 && detail::kC128aPages.scale_offset(3) == 2888);
static_assert(detail::kIndexerPages.data_offset(65) == 8768 && detail::kIndexerPages.scale_offset(65) == 16836);
static_assert(page_padded_bytes(KvFormat::fp8_ds_mla_v4, 512, 64, 576) == 37440 &&
              page_padded_bytes(KvFormat::fp8_ds_mla_v4, 512, 2, 576) == 1728);
static_assert(page_padded_bytes(KvFormat::indexer_fp8, 128, 64, 576) == 8640 &&
              page_padded_bytes(KvFormat::indexer_mxfp4, 128, 64, 576) == 4608);
static_assert(kMlaRopeOffset + 2 * kMlaRopeDim == row_data_bytes(KvFormat::fp8_ds_mla, 576));

}  // namespace strata
