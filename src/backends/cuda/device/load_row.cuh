// Reads rows of a paged cache as bf16: the values of strata::load_row (formats/kv_rows.h), rounded.
#pragma once

#include "backends/cuda/device/pack.cuh"
#include "formats/kv_rows.h"

namespace strata::cuda {

// Any value of any row of any format except state_f32.
__device__ __forceinline__ Bf16 load_element(const PagedCache& cache, const uint8_t* data, const uint8_t* scales, int i) {
  switch (cache.format) {
    case KvFormat::fp8_tensor: return to_bf16(to_float(E4m3{data[i]}) * cache.scale);
    case KvFormat::fp8_ds_mla_v4:
      if (i >= kV4NopeDim) return {load_u16(data + kV4NopeDim + 2 * (i - kV4NopeDim))};
      return to_bf16(to_float(E4m3{data[i]}) * to_float(E8m0{scales[i / kKvBlock]}));
    case KvFormat::fp8_ds_mla:
      if (i >= kMlaLatentDim) return {load_u16(data + kMlaRopeOffset + 2 * (i - kMlaLatentDim))};
      return to_bf16(to_float(E4m3{data[i]}) * load_f32(data + kMlaScaleOffset + 4 * (i / kMlaTile)));
    case KvFormat::indexer_fp8: return to_bf16(to_float(E4m3{data[i]}) * load_f32(scales));
    case KvFormat::indexer_mxfp4: return to_bf16(e2m1_element(data, i) * to_float(E8m0{scales[i / kMxfp4Block]}));
    default: return {load_u16(data + 2 * i)};
  }
}

// Eight neighbouring values as stored in the cache: quantised values in the first words and their scale, or bf16.
struct StoredRun {
  uint4 words;
  float scale;
};

// Whether the values from `begin` on are quantised.
template <KvFormat kFormat>
__device__ __forceinline__ bool stored_quantized(int begin) {
  if constexpr (kFormat == KvFormat::bf16) return false;
  if constexpr (kFormat == KvFormat::fp8_ds_mla_v4) return begin < kV4NopeDim;
  if constexpr (kFormat == KvFormat::fp8_ds_mla) return begin < kMlaLatentDim;
  return true;
}

// True where load_run works: in all formats, bf16 values are then 16-byte aligned and quantised values 8-byte aligned.
inline bool runs_aligned(const PagedCache& cache) {
  return reinterpret_cast<uintptr_t>(cache.data) % 16 == 0 && cache.page_stride % 16 == 0 && cache.row_dim % 8 == 0;
}

template <KvFormat kFormat>
__device__ __forceinline__ StoredRun load_run(const PagedCache& cache, const uint8_t* data, const uint8_t* scales, int begin) {
  StoredRun run{};
  if (!stored_quantized<kFormat>(begin)) {
    const int64_t offset = kFormat == KvFormat::fp8_ds_mla_v4 ? kV4NopeDim + 2 * (begin - kV4NopeDim)
                           : kFormat == KvFormat::fp8_ds_mla  ? kMlaRopeOffset + 2 * (begin - kMlaLatentDim)
                                                              : 2 * begin;
    run.words = *reinterpret_cast<const uint4*>(data + offset);
    return run;
  }
  if constexpr (kFormat == KvFormat::indexer_mxfp4) {
    run.words.x = *reinterpret_cast<const uint32_t*>(data + begin / 2);
    run.scale = to_float(E8m0{scales[begin / kMxfp4Block]});
    return run;
  }
  const uint2 quantized = *reinterpret_cast<const uint2*>(data + begin);
  run.words.x = quantized.x;
  run.words.y = quantized.y;
  if constexpr (kFormat == KvFormat::fp8_tensor) run.scale = cache.scale;
  if constexpr (kFormat == KvFormat::fp8_ds_mla_v4) run.scale = to_float(E8m0{scales[begin / kKvBlock]});
  if constexpr (kFormat == KvFormat::fp8_ds_mla)
    run.scale = *reinterpret_cast<const float*>(data + kMlaScaleOffset + 4 * (begin / kMlaTile));
  if constexpr (kFormat == KvFormat::indexer_fp8) run.scale = *reinterpret_cast<const float*>(scales);
  return run;
}

template <KvFormat kFormat>
__device__ __forceinline__ uint4 decode_run(const StoredRun& run, int begin) {
  if (!stored_quantized<kFormat>(begin)) {
    return run.words;
  } else {
    float x[8];
    if constexpr (kFormat == KvFormat::indexer_mxfp4) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = e2m1_to_float(static_cast<uint8_t>(run.words.x >> 4 * i));
    } else {
      float low[4], high[4];
      unpack_e4m3(run.words.x, low);
      unpack_e4m3(run.words.y, high);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = low[i];
        x[4 + i] = high[i];
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= run.scale;
    return make_uint4(ptx::cvt_bf16x2(x[0], x[1]), ptx::cvt_bf16x2(x[2], x[3]), ptx::cvt_bf16x2(x[4], x[5]), ptx::cvt_bf16x2(x[6], x[7]));
  }
}

}  // namespace strata::cuda
