// Writes one row of a paged cache by a warp or a part of it: the bytes that strata::store_row (formats/kv_rows.h) writes for the same fp32
// values. A lane holds consecutive values, neighbouring lanes neighbouring ones. Other row widths than the models' exist only in formats
// without quantisation blocks (bf16, fp8_tensor): store_element.
#pragma once

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/device/touch.cuh"
#include "backends/cuda/device/warp.cuh"
#include "formats/kv_rows.h"

namespace strata::cuda {

struct RowAddress {
  uint8_t* data;
  uint8_t* scales;
};

struct PagePosition {
  int64_t page;
  uint32_t row;
};

// A page size, prepared by the host: computes positions without a division.
class PageSize {
 public:
  explicit PageSize(int32_t rows) : rows_(rows), inverse_(1.0 / rows) {}

  // The position of row n >= 0. From 2^31 on by a product that is off by at most one, and corrected.
  __device__ __forceinline__ PagePosition position(int64_t n) const {
    if (n <= INT32_MAX) {
      const int32_t page = rows_.divide(static_cast<int32_t>(n));
      return {page, static_cast<uint32_t>(static_cast<int32_t>(n) - page * rows_.value())};
    }
    const int64_t size = rows_.value();
    int64_t page = static_cast<int64_t>(static_cast<double>(n) * inverse_), row = n - page * size;
    if (row < 0) --page, row += size;
    if (row >= size) ++page, row -= size;
    return {page, static_cast<uint32_t>(row)};
  }

 private:
  Divisor rows_;
  double inverse_;
};

// Addresses of rows of a cache, prepared by the host: without a division.
struct CacheRows {
  uint8_t* data;
  int64_t page_stride, num_slots, scales;  // scales: offset of a page's scales
  PageSize page_size;
  int32_t row_bytes, scale_bytes;

  explicit CacheRows(const PagedCache& cache)
      : data(static_cast<uint8_t*>(cache.data)),
        page_stride(cache.page_stride),
        num_slots(cache.num_slots()),
        scales(cache.page_size * row_data_bytes(cache.format, cache.row_dim)),
        page_size(cache.present() ? cache.page_size : 1),
        row_bytes(static_cast<int32_t>(row_data_bytes(cache.format, cache.row_dim))),
        scale_bytes(static_cast<int32_t>(row_scale_bytes(cache.format))) {}

  // slot >= 0.
  __device__ __forceinline__ RowAddress row(int64_t slot) const {
    const PagePosition at = page_size.position(slot);
    uint8_t* const begin = data + at.page * page_stride;
    return {begin + int64_t{at.row} * row_bytes, begin + scales + int64_t{at.row} * scale_bytes};
  }
  // Touches a row that is going to be written, if the slot exists: the write then hits the TLB.
  __device__ __forceinline__ void touch_row(int64_t slot) const {
    if (slot < 0 || slot >= num_slots) return;
    touch(row(slot).data);
  }
};

// fp8_tensor: how values are quantised.
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
    data[i] = to_e4m3(v != v ? v : scale(v)).bits;
  }
}

// x / divisor for |x| up to about 448 times a normal divisor: the correctly rounded reciprocal, one product and its correction. The
// quotient is correctly rounded if it is not subnormal; otherwise its error is far below the smallest e4m3 value.
struct Quotient {
  float divisor, reciprocal;
  __device__ explicit Quotient(float divisor) : divisor(divisor), reciprocal(1.0f / divisor) {}
  __device__ float operator()(float v) const { return v == 0.0f ? v : unsigned_zero(v); }
  // The same, but -0 may become +0.
  __device__ float unsigned_zero(float v) const {
    const float q = v * reciprocal;
    return fmaf(fmaf(-q, divisor, v), reciprocal, q);
  }
};

template <int kValues>
__device__ __forceinline__ void store_bf16(uint8_t* p, const float (&x)[kValues]) {
  uint32_t words[kValues / 2];
  pack_bf16(x, words);
  store_words(p, words);
}

// Values rounded to bf16. kExact: they already are bf16 values.
template <int kValues, bool kExact = false>
struct Rounded {
  float values[kValues];
  uint32_t words[kExact ? 1 : kValues / 2];

  __device__ __forceinline__ explicit Rounded(const float (&x)[kValues]) {
    if constexpr (kExact) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) values[i] = x[i];
    } else {
      pack_bf16(x, words);
#pragma unroll
      for (int i = 0; i < kValues / 2; ++i) {
        values[2 * i] = bf16_low(words[i]);
        values[2 * i + 1] = bf16_high(words[i]);
      }
    }
  }
  __device__ __forceinline__ float amax() const {
    float result = 0.0f;
#pragma unroll
    for (int i = 0; i < kValues; ++i) result = fmaxf(result, fabsf(values[i]));
    return result;
  }
  // Stores bf16 to p.
  __device__ __forceinline__ void store(uint8_t* p) const {
    if constexpr (kExact) {
      store_bf16(p, values);
    } else {
      store_words(p, words);
    }
  }
};

// Stores the lane's f(x[i]) as e4m3 to p.
template <int kValues, class F>
__device__ __forceinline__ void store_quantized(uint8_t* p, const float (&x)[kValues], F f) {
  uint32_t words[kValues / 4];
#pragma unroll
  for (int i = 0; i < kValues / 4; ++i) words[i] = pack_e4m3(x + 4 * i, f);
  store_words(p, words);
}

namespace detail {

template <bool kExact>
__device__ __forceinline__ void store_v4(RowAddress to, const float (&x)[16], int lane) {
  constexpr int kLanes = kKvBlock / 16;
  const Rounded<16, kExact> rounded(x);
  const auto scale = BlockScale::of_e4m3(fmaxf(lanes_max<kLanes>(rounded.amax()), kKvAmaxFloor));
  const bool rope = lane >= kV4NumBlocks * kLanes;
  if (rope) {
    rounded.store(to.data + kV4NopeDim + 2 * (16 * lane - kV4NopeDim));
  } else {
    store_quantized(to.data + 16 * lane, rounded.values, [s = scale.inverse()](float v) { return __fmul_rn(v, s); });
  }
  if (lane % kLanes == 0) to.scales[lane / kLanes] = rope ? 0 : scale.byte();
}

template <bool kExact, int kValues>
__device__ __forceinline__ void store_indexer_fp8(RowAddress to, const float (&x)[kValues], int lane, bool valid) {
  const Rounded<kValues, kExact> rounded(x);
  const auto scale = BlockScale::of_e4m3(fmaxf(lanes_max<kIndexerDim / kValues>(rounded.amax()), kKvAmaxFloor));
  if (!valid) return;
  store_quantized(to.data + kValues * lane, rounded.values, [s = scale.inverse()](float v) { return __fmul_rn(v, s); });
  if (lane == 0) store_words<1>(to.scales, {float_bits(scale.value())});
}

template <bool kExact, int kValues>
__device__ __forceinline__ void store_indexer_mxfp4(RowAddress to, const float (&x)[kValues], int lane, bool valid) {
  constexpr int kLanes = kMxfp4Block / kValues;
  const Rounded<kValues, kExact> rounded(x);
  const BlockScale scale{min(ceil_log2(fmaxf(lanes_max<kLanes>(rounded.amax()), 6 * 0x1p-126f) / 6.0f), 127)};
  uint8_t quantized[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const float v = rounded.values[i];
    quantized[i] = to_e2m1(v != v ? v : __fmul_rn(v, scale.inverse()));
  }
  if constexpr (kValues == 4) {
    const uint32_t mine = pack_e2m1(quantized[0], quantized[1]) | uint32_t{pack_e2m1(quantized[2], quantized[3])} << 8;
    const uint32_t next = __shfl_down_sync(kAllLanes, mine, 1);
    if (valid && lane % 2 == 0) store_words<1>(to.data + 2 * lane, {mine | next << 16});
  } else {
    uint32_t words[kValues / 8] = {};
#pragma unroll
    for (int i = 0; i < kValues; i += 2) words[i / 8] |= uint32_t{pack_e2m1(quantized[i], quantized[i + 1])} << 4 * (i % 8);
    if (valid) store_words(to.data + kValues / 2 * lane, words);
  }
  if (valid && lane % kLanes == 0) to.scales[lane / kLanes] = scale.byte();
}

}  // namespace detail

// Stores a row of 128 values, by 128 / kValues neighbouring lanes: `lane` is relative to the row. Every lane of the warp calls it, also for
// rows that are not valid. kExact: x are bf16 values.
template <bool kExact = false, int kValues>
__device__ __forceinline__ void store_row_128(const PagedCache& cache, const RowAddress& to, const float (&x)[kValues], int lane,
                                              bool valid = true, StoreOptions options = {}) {
  if (cache.format == KvFormat::indexer_fp8) {
    detail::store_indexer_fp8<kExact>(to, x, lane, valid);
  } else if (cache.format == KvFormat::indexer_mxfp4) {
    detail::store_indexer_mxfp4<kExact>(to, x, lane, valid);
  } else if (!valid) {
    return;
  } else if (cache.format == KvFormat::bf16) {
    store_bf16(to.data + 2 * kValues * lane, x);
  } else {
    store_quantized(to.data + kValues * lane, x, TensorScale(cache.scale, options.divide));
  }
}

// Stores a row of 512 values: lane l has the 16 from 16 l on. Every lane of the warp calls it, with the same row.
template <bool kExact = false>
__device__ __forceinline__ void store_row_512(const PagedCache& cache, const RowAddress& to, const float (&x)[16], int lane,
                                              StoreOptions options = {}) {
  if (cache.format == KvFormat::bf16) {
    store_bf16(to.data + 32 * lane, x);
  } else if (cache.format == KvFormat::fp8_tensor) {
    store_quantized(to.data + 16 * lane, x, TensorScale(cache.scale, options.divide));
  } else {
    detail::store_v4<kExact>(to, x, lane);
  }
}

// Stores the 512 + 64 values of an MLA row (fp8_ds_mla, bf16, fp8_tensor): lane l holds [16 l, 16 l + 16) of the latent vector and [2 l, 2
// l + 2) of the rotary dimensions.
template <bool kExact = false>
__device__ __forceinline__ void store_mla_row(const PagedCache& cache, const RowAddress& to, const float (&latent)[16],
                                              const float (&rope)[2], int lane, StoreOptions options = {}) {
  if (cache.format == KvFormat::fp8_tensor) {
    const TensorScale scale(cache.scale, options.divide);
    store_quantized(to.data + 16 * lane, latent, scale);
    const float four[4] = {rope[0], rope[1], 0.0f, 0.0f};
    const uint32_t word = pack_e4m3(four, scale);
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
  const Rounded<16, kExact> rounded(latent);
  const float amax = lanes_max<kLanes>(rounded.amax());
  float scale;
  if (options.ue8m0) {
    const auto power = BlockScale::of_e4m3(fmaxf(amax, kKvAmaxFloor));
    store_quantized(to.data + 16 * lane, rounded.values, [s = power.inverse()](float v) { return __fmul_rn(v, s); });
    scale = power.value();
  } else {
    scale = fmaxf(__fdiv_rn(amax, kE4m3Max), 0x1p-126f);
    store_quantized(to.data + 16 * lane, rounded.values, Quotient(scale));
  }
  if (lane % kLanes == 0) store_words<1>(to.data + kMlaScaleOffset + 4 * (lane / kLanes), {float_bits(scale)});
  store_words<1>(to.data + kMlaRopeOffset + 4 * lane, {rope_word});
}

}  // namespace strata::cuda
