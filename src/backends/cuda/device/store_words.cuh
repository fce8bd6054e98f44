// Stores 16-byte aligned rows of the models' formats from words of finite bf16 values: the bytes of store_row.cuh in a third of its
// instructions, which matter in small calls.
#pragma once

#include "backends/cuda/device/bf16_words.cuh"
#include "backends/cuda/device/store_row.cuh"

namespace strata::cuda {

// Whether the rows of a cache are such rows.
inline bool rows_of_words(const PagedCache& cache) {
  const KvFormat format = cache.format;
  return (format == KvFormat::fp8_ds_mla_v4 || format == KvFormat::fp8_ds_mla || format == KvFormat::indexer_fp8) &&
         reinterpret_cast<uintptr_t>(cache.data) % 16 == 0 && cache.page_stride % 16 == 0;
}

// At multiples of 16 bytes; one word is stored at multiples of 4, two at multiples of 8.
template <int kWords>
__device__ __forceinline__ void load_wide(const uint8_t* p, uint32_t (&words)[kWords]) {
  static_assert(kWords % 4 == 0);
#pragma unroll
  for (int i = 0; i < kWords; i += 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(p + 4 * i);
    words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
  }
}
__device__ __forceinline__ void store_wide(uint8_t* p, const uint32_t (&words)[1]) { *reinterpret_cast<uint32_t*>(p) = words[0]; }
__device__ __forceinline__ void store_wide(uint8_t* p, const uint32_t (&words)[2]) {
  *reinterpret_cast<uint2*>(p) = make_uint2(words[0], words[1]);
}
__device__ __forceinline__ void store_wide(uint8_t* p, const uint32_t (&words)[4]) {
  *reinterpret_cast<uint4*>(p) = make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ float amax_value(uint32_t bits) { return fmaxf(__uint_as_float(bits << 16), kKvAmaxFloor); }

// Of finite values. `to`: the row.
__device__ __forceinline__ void store_v4(RowAddress to, const uint32_t (&words)[8], uint32_t amax, int lane) {
  constexpr int kLanes = kKvBlock / 16;
  const bool rope = lane >= kV4NumBlocks * kLanes;
  const auto scale = BlockScale::of_e4m3(amax_value(amax));
  if (rope) {
    uint8_t* const p = to.data + kV4NopeDim + 2 * (16 * lane - kV4NopeDim);
    *reinterpret_cast<uint4*>(p) = make_uint4(words[0], words[1], words[2], words[3]);
    *reinterpret_cast<uint4*>(p + 16) = make_uint4(words[4], words[5], words[6], words[7]);
  } else {
    uint32_t quantized[4];
    quantize_e4m3(words, scale, quantized);
    store_wide(to.data + 16 * lane, quantized);
  }
  if (lane % kLanes == 0) to.scales[lane / kLanes] = rope ? 0 : scale.byte();
}

template <int kWords>
__device__ __forceinline__ void store_indexer(RowAddress to, const uint32_t (&words)[kWords], uint32_t amax, int lane) {
  const auto scale = BlockScale::of_e4m3(amax_value(amax));
  uint32_t quantized[kWords / 2];
  quantize_e4m3(words, scale, quantized);
  store_wide(to.data + 2 * kWords * lane, quantized);
  if (lane == 0) *reinterpret_cast<float*>(to.scales) = scale.value();
}

__device__ __forceinline__ void store_mla(RowAddress to, const uint32_t (&words)[8], uint32_t rope, uint32_t amax, int lane, bool ue8m0) {
  constexpr int kLanes = kMlaTile / 16;
  float scale;
  uint32_t quantized[4];
  if (ue8m0) {
    const auto power = BlockScale::of_e4m3(amax_value(amax));
    quantize_e4m3(words, power, quantized);
    scale = power.value();
  } else {
    scale = fmaxf(__fdiv_rn(__uint_as_float(amax << 16), kE4m3Max), 0x1p-126f);
    const Quotient quotient(scale);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = words[2 * i], high = words[2 * i + 1];
      quantized[i] = pack_finite_e4m3(quotient.unsigned_zero(bf16_low(low)), quotient.unsigned_zero(bf16_high(low)),
                                      quotient.unsigned_zero(bf16_low(high)), quotient.unsigned_zero(bf16_high(high))) |
                     (__byte_perm(low, high, 0x7531) & 0x80808080u);
    }
  }
  store_wide(to.data + 16 * lane, quantized);
  if (lane % kLanes == 0) *reinterpret_cast<float*>(to.data + kMlaScaleOffset + 4 * (lane / kLanes)) = scale;
  *reinterpret_cast<uint32_t*>(to.data + kMlaRopeOffset + 4 * lane) = rope;
}

}  // namespace strata::cuda
