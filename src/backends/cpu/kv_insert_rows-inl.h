// Writes one row of a paged cache from fp32, and reads it as bf16: formats/kv_rows.h in vectors, the same bytes. Included once per SIMD
// target.
#if defined(STRATA_KV_INSERT_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_KV_INSERT_ROWS_INL_H
#undef STRATA_KV_INSERT_ROWS_INL_H
#else
#define STRATA_KV_INSERT_ROWS_INL_H
#endif

#include <cstring>

#include "backends/cpu/rope-inl.h"
#include "backends/cpu/simd_formats-inl.h"
#include "formats/kv_rows.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {

// quantized[0, n) = e4m3 of values rounded to bf16, under one power-of-two scale, whose exponent it returns.
HWY_INLINE int store_rounded_e4m3(const float* HWY_RESTRICT x, int64_t n, float floor, uint8_t* HWY_RESTRICT quantized) {
  return store_e4m3_pow2([x](int64_t i) HWY_ATTR { return round_bf16(hn::LoadU(F32(), x + i)); }, n, floor, quantized);
}

// MLA 9.1 with fp32 scales: division, as in public writers. Returns the scale.
HWY_INLINE float store_e4m3_f32(const float* HWY_RESTRICT x, int64_t n, uint8_t* HWY_RESTRICT quantized) {
  const auto rounded = [x](int64_t i) HWY_ATTR { return round_bf16(hn::LoadU(F32(), x + i)); };
  const float unclamped = amax_of(rounded, n, 0.0f) / kE4m3Max;
  const float scale = unclamped < 0x1p-126f ? 0x1p-126f : unclamped;
  store_e4m3_divided(rounded, n, scale, quantized);
  return scale;
}

// 32 values to 16 bytes.
HWY_INLINE uint8_t store_mxfp4(const float* HWY_RESTRICT x, uint8_t* HWY_RESTRICT packed) {
  const F32 df;
  const U32 du;
  const auto rounded = [x](int64_t i) HWY_ATTR { return round_bf16(hn::LoadU(F32(), x + i)); };
  int exponent = ceil_log2(amax_of(rounded, kMxfp4Block, 6 * 0x1p-126f) / 6.0f);
  if (exponent > 127) exponent = 127;
  const VF inverse = hn::Set(df, pow2(-exponent));
  alignas(64) uint8_t quantized[kMxfp4Block];
  for (int64_t i = 0; i < kMxfp4Block; i += kLanes) {
    const VF v = hn::Mul(rounded(i), inverse);
    const VF a = hn::Abs(v);
    // Each comparison that holds is a midpoint not passed, and subtracts 1 from 7. NaN passes all midpoints, as in the scalar code.
    VU e2m1 = hn::Set(du, 7u);
    const auto below = [&](auto mask) HWY_ATTR { e2m1 = hn::Add(e2m1, hn::BitCast(du, hn::VecFromMask(df, mask))); };
    below(hn::Le(a, hn::Set(df, 0.25f)));
    below(hn::Lt(a, hn::Set(df, 0.75f)));
    below(hn::Le(a, hn::Set(df, 1.25f)));
    below(hn::Lt(a, hn::Set(df, 1.75f)));
    below(hn::Le(a, hn::Set(df, 2.5f)));
    below(hn::Lt(a, hn::Set(df, 3.5f)));
    below(hn::Le(a, hn::Set(df, 5.0f)));
    const VU sign = hn::And(hn::ShiftRight<28>(hn::BitCast(du, v)), hn::Set(du, 8u));
    hn::StoreU(hn::TruncateTo(U8(), hn::Or(e2m1, sign)), U8(), quantized + i);
  }
  for (int i = 0; i < kMxfp4Block / 2; ++i) packed[i] = pack_e2m1(quantized[2 * i], quantized[2 * i + 1]);
  return to_e8m0(exponent).bits;
}

// quantized[i] = e4m3(x[i] / factor), or of x[i] * factor.
HWY_INLINE void store_scaled_e4m3(const float* HWY_RESTRICT x, int64_t n, float factor, bool divide, uint8_t* HWY_RESTRICT quantized) {
  const F32 df;
  const VF f = hn::Set(df, factor);
  int64_t i = 0;
  for (; i < whole(n); i += kLanes) {
    const VF v = hn::LoadU(df, x + i);
    store_e4m3(divide ? hn::Div(v, f) : hn::Mul(v, f), quantized + i);
  }
  // The analyzer does not know that x has n values.
  for (; i < n; ++i) quantized[i] = to_e4m3(divide ? x[i] / factor : x[i] * factor).bits;  // NOLINT(clang-analyzer-core.*)
}

// strata::store_row.
HWY_INLINE void store_cache_row(const PagedCache& cache, int64_t slot, const float* HWY_RESTRICT x, StoreOptions options = {}) {
  uint8_t* const data = static_cast<uint8_t*>(cache.data) + cache.data_offset(slot);
  uint8_t* const scales = static_cast<uint8_t*>(cache.data) + cache.scale_offset(slot);
  switch (cache.format) {
    case KvFormat::bf16: narrow(x, cache.row_dim, data); return;
    case KvFormat::fp8_tensor:
      store_scaled_e4m3(x, cache.row_dim, options.divide ? cache.scale : 1.0f / cache.scale, options.divide, data);
      return;
    case KvFormat::fp8_ds_mla_v4:
      for (int b = 0; b < kV4NumBlocks; ++b) {
        scales[b] = to_e8m0(store_rounded_e4m3(x + b * kKvBlock, kKvBlock, kKvAmaxFloor, data + b * kKvBlock)).bits;
      }
      scales[kV4NumBlocks] = 0;
      narrow(x + kV4NopeDim, kV4RopeDim, data + kV4NopeDim);
      return;
    case KvFormat::fp8_ds_mla:
      for (int t = 0; t < kMlaLatentDim / kMlaTile; ++t) {
        const float* tile = x + t * kMlaTile;
        uint8_t* quantized = data + t * kMlaTile;
        const float scale = options.ue8m0 ? to_float(to_e8m0(store_rounded_e4m3(tile, kMlaTile, kKvAmaxFloor, quantized)))
                                          : store_e4m3_f32(tile, kMlaTile, quantized);
        store_f32(data + kMlaScaleOffset + 4 * t, scale);
      }
      narrow(x + kMlaLatentDim, kMlaRopeDim, data + kMlaRopeOffset);
      return;
    case KvFormat::indexer_fp8: store_f32(scales, to_float(to_e8m0(store_rounded_e4m3(x, kIndexerDim, kKvAmaxFloor, data)))); return;
    case KvFormat::indexer_mxfp4:
      for (int b = 0; b < kIndexerDim / kMxfp4Block; ++b) {
        scales[b] = store_mxfp4(x + b * kMxfp4Block, data + b * (kMxfp4Block / 2));
      }
      return;
    case KvFormat::state_f32: std::memcpy(data, x, static_cast<size_t>(cache.row_dim) * sizeof(float)); return;
  }
}

HWY_INLINE void e4m3_to_bf16(const uint8_t* HWY_RESTRICT quantized, int64_t n, float scale, Bf16* HWY_RESTRICT out) {
  const VF s = hn::Set(F32(), scale);
  int64_t i = 0;
  for (; i < whole(n); i += kLanes) store_bf16(hn::Mul(load_e4m3(quantized + i), s), out + i);
  for (; i < n; ++i) out[i] = to_bf16(to_float(E4m3{quantized[i]}) * scale);
}

// strata::load_row, rounded to bf16.
HWY_INLINE void load_cache_row(const PagedCache& cache, int64_t slot, Bf16* HWY_RESTRICT out) {
  const uint8_t* const data = row_data(cache, slot);
  switch (cache.format) {
    case KvFormat::bf16: std::memcpy(out, data, static_cast<size_t>(cache.row_dim) * sizeof(Bf16)); return;
    case KvFormat::fp8_tensor: e4m3_to_bf16(data, cache.row_dim, cache.scale, out); return;
    case KvFormat::fp8_ds_mla_v4: {
      const uint8_t* const scales = row_scale(cache, slot);
      for (int b = 0; b < kV4NumBlocks; ++b) e4m3_to_bf16(data + b * kKvBlock, kKvBlock, to_float(E8m0{scales[b]}), out + b * kKvBlock);
      std::memcpy(out + kV4NopeDim, data + kV4NopeDim, kV4RopeDim * sizeof(Bf16));
      return;
    }
    case KvFormat::fp8_ds_mla:
      for (int t = 0; t < kMlaLatentDim / kMlaTile; ++t) {
        e4m3_to_bf16(data + t * kMlaTile, kMlaTile, load_f32(data + kMlaScaleOffset + 4 * t), out + t * kMlaTile);
      }
      std::memcpy(out + kMlaLatentDim, data + kMlaRopeOffset, kMlaRopeDim * sizeof(Bf16));
      return;
    case KvFormat::indexer_fp8: e4m3_to_bf16(data, kIndexerDim, load_f32(row_scale(cache, slot)), out); return;
    case KvFormat::indexer_mxfp4: {
      const uint8_t* const scales = row_scale(cache, slot);
      for (int i = 0; i < kIndexerDim; ++i) out[i] = to_bf16(e2m1_element(data, i) * to_float(E8m0{scales[i / kMxfp4Block]}));
      return;
    }
    case KvFormat::state_f32: return;  // the op's check refuses it
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
