// One row of a paged cache, written by a warp: the bytes that strata::store_row (formats/kv_rows.h) writes for the same fp32 values.
// Lane l holds the consecutive values [l * kValues, (l + 1) * kValues) of a row of 32 * kValues. Rows of any other width exist in the
// formats without blocks (bf16, fp8_tensor): store_element.
#pragma once

#include "backends/cuda/common/pack.cuh"
#include "backends/cuda/common/warp.cuh"
#include "formats/kv_rows.h"

namespace strata::cuda {

struct RowAddress {
  uint8_t* data;
  uint8_t* scales;
};

// slot >= 0.
__device__ __forceinline__ RowAddress row_address(const PagedCache& cache, int64_t slot) {
  const auto page_size = static_cast<uint32_t>(cache.page_size);
  int64_t page;
  uint32_t row;
  if (slot <= 0xFFFFFFFF) {  // a 64-bit division costs as much as the rest of the row
    page = static_cast<uint32_t>(slot) / page_size;
    row = static_cast<uint32_t>(slot) % page_size;
  } else {
    page = slot / page_size;
    row = static_cast<uint32_t>(slot - page * page_size);
  }
  const int64_t data_bytes = row_data_bytes(cache.format, cache.row_dim);
  uint8_t* const begin = static_cast<uint8_t*>(cache.data) + page * cache.page_stride;
  return {begin + row * data_bytes, begin + page_size * data_bytes + row * row_scale_bytes(cache.format)};
}

// fp8_tensor: how values become codes.
struct TensorScale {
  float factor;  // divide: the divisor
  bool divide;
  __device__ TensorScale(float scale, bool divide) : factor(divide ? scale : 1.0f / scale), divide(divide) {}
  __device__ float operator()(float v) const { return divide ? __fdiv_rn(v, factor) : __fmul_rn(v, factor); }
};

// One value of a bf16 or fp8_tensor row.
__device__ __forceinline__ void store_element(const PagedCache& cache, uint8_t* data, int64_t i, float v, TensorScale scale) {
  if (cache.format == KvFormat::bf16) {
    store_u16(data + 2 * i, to_bf16(v).bits);
  } else {
    data[i] = to_e4m3(scale(v)).bits;
  }
}

template <int kValues>
__device__ __forceinline__ float lane_amax(const float (&x)[kValues]) {
  float result = 0.0f;
#pragma unroll
  for (int i = 0; i < kValues; ++i) result = fmaxf(result, fabsf(x[i]));
  return result;
}

template <int kValues>
__device__ __forceinline__ void round_values(const float (&x)[kValues], float (&rounded)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) rounded[i] = round_to_bf16(x[i]);
}

// The lane's values as codes of code(x[i]), at p.
template <int kValues, class Code>
__device__ __forceinline__ void store_codes(uint8_t* p, const float (&x)[kValues], Code code) {
  uint32_t words[kValues / 4];
#pragma unroll
  for (int i = 0; i < kValues / 4; ++i) words[i] = pack_e4m3(code(x[4 * i]), code(x[4 * i + 1]), code(x[4 * i + 2]), code(x[4 * i + 3]));
  store_words(p, words);
}

template <int kValues>
__device__ __forceinline__ void store_bf16(uint8_t* p, const float (&x)[kValues]) {
  uint32_t words[kValues / 2];
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i) words[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
  store_words(p, words);
}

namespace detail {

__device__ __forceinline__ void store_v4(RowAddress to, const float (&x)[16], int lane) {
  constexpr int kLanes = kKvBlock / 16;
  float rounded[16];
  round_values(x, rounded);
  const int exponent = e4m3_exponent(fmaxf(lanes_max<kLanes>(lane_amax(rounded)), kKvAmaxFloor));
  const bool rope = lane >= kV4NumBlocks * kLanes;
  if (rope) {
    store_bf16(to.data + kV4NopeDim + 2 * (16 * lane - kV4NopeDim), rounded);
  } else {
    store_codes(to.data + 16 * lane, rounded, [s = pow2(-exponent)](float v) { return __fmul_rn(v, s); });
  }
  if (lane % kLanes == 0) to.scales[lane / kLanes] = rope ? 0 : to_e8m0(exponent).bits;
}

__device__ __forceinline__ void store_indexer_fp8(RowAddress to, const float (&x)[4], int lane) {
  float rounded[4];
  round_values(x, rounded);
  const int exponent = e4m3_exponent(fmaxf(lanes_max(lane_amax(rounded)), kKvAmaxFloor));
  store_codes(to.data + 4 * lane, rounded, [s = pow2(-exponent)](float v) { return __fmul_rn(v, s); });
  if (lane == 0) store_words<1>(to.scales, {float_bits(to_float(to_e8m0(exponent)))});
}

__device__ __forceinline__ void store_indexer_mxfp4(RowAddress to, const float (&x)[4], int lane) {
  constexpr int kLanes = kMxfp4Block / 4;
  float rounded[4];
  round_values(x, rounded);
  int exponent = ceil_log2(fmaxf(lanes_max<kLanes>(lane_amax(rounded)), 6 * 0x1p-126f) / 6.0f);
  if (exponent > 127) exponent = 127;
  uint8_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[i] = to_e2m1(__fmul_rn(rounded[i], pow2(-exponent)));
  const uint32_t mine = pack_e2m1(codes[0], codes[1]) | uint32_t{pack_e2m1(codes[2], codes[3])} << 8;
  const uint32_t next = __shfl_down_sync(kAllLanes, mine, 1);
  if (lane % 2 == 0) store_words<1>(to.data + 2 * lane, {mine | next << 16});
  if (lane % kLanes == 0) to.scales[lane / kLanes] = to_e8m0(exponent).bits;
}

}  // namespace detail

// 32 * kValues values. Every lane of the warp calls it, with one slot >= 0. fp8_ds_mla rows: store_mla_row.
template <int kValues>
__device__ __forceinline__ void store_row(const PagedCache& cache, int64_t slot, const float (&x)[kValues], int lane,
                                          StoreOptions options = {}) {
  const RowAddress to = row_address(cache, slot);
  if (cache.format == KvFormat::bf16) {
    store_bf16(to.data + 2 * kValues * lane, x);
  } else if (cache.format == KvFormat::fp8_tensor) {
    store_codes(to.data + kValues * lane, x, TensorScale(cache.scale, options.divide));
  } else if constexpr (kValues == 16) {
    detail::store_v4(to, x, lane);
  } else if constexpr (kValues == 4) {
    if (cache.format == KvFormat::indexer_fp8) {
      detail::store_indexer_fp8(to, x, lane);
    } else {
      detail::store_indexer_mxfp4(to, x, lane);
    }
  }
}

// The 512 + 64 values of an MLA row (fp8_ds_mla, bf16, fp8_tensor): lane l holds [16 l, 16 l + 16) of the latent vector and
// [2 l, 2 l + 2) of the rotary lanes.
__device__ __forceinline__ void store_mla_row(const PagedCache& cache, int64_t slot, const float (&latent)[16], const float (&rope)[2],
                                              int lane, StoreOptions options = {}) {
  const RowAddress to = row_address(cache, slot);
  if (cache.format == KvFormat::fp8_tensor) {
    const TensorScale scale(cache.scale, options.divide);
    store_codes(to.data + 16 * lane, latent, scale);
    const uint32_t word = pack_e4m3(scale(rope[0]), scale(rope[1]), 0.0f, 0.0f);
    const uint32_t next = __shfl_down_sync(kAllLanes, word, 1);
    if (lane % 2 == 0) store_words<1>(to.data + kMlaLatentDim + 2 * lane, {word | next << 16});
    return;
  }
  const uint32_t rope_word = pack_bf16(rope[0], rope[1]);
  if (cache.format == KvFormat::bf16) {
    store_bf16(to.data + 32 * lane, latent);
    store_words<1>(to.data + 2 * kMlaLatentDim + 4 * lane, {rope_word});
    return;
  }
  constexpr int kLanes = kMlaTile / 16;
  float rounded[16];
  round_values(latent, rounded);
  const float amax = lanes_max<kLanes>(lane_amax(rounded));
  float scale;
  if (options.ue8m0) {
    const int exponent = e4m3_exponent(fmaxf(amax, kKvAmaxFloor));
    store_codes(to.data + 16 * lane, rounded, [s = pow2(-exponent)](float v) { return __fmul_rn(v, s); });
    scale = to_float(to_e8m0(exponent));
  } else {
    scale = fmaxf(__fdiv_rn(amax, kE4m3Max), 0x1p-126f);
    store_codes(to.data + 16 * lane, rounded, [scale](float v) { return __fdiv_rn(v, scale); });
  }
  if (lane % kLanes == 0) store_words<1>(to.data + kMlaScaleOffset + 4 * (lane / kLanes), {float_bits(scale)});
  store_words<1>(to.data + kMlaRopeOffset + 4 * lane, {rope_word});
}

}  // namespace strata::cuda
