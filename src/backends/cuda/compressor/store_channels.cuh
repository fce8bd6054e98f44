// A row of 512 values that the warps of a CTA write together, with the bytes of store_row.
#pragma once

#include "backends/cuda/device/store_row.cuh"

namespace strata::cuda {

// Quantised f(x[i]).
template <class F>
__device__ __forceinline__ void store_quantized(uint8_t* p, const float (&x)[2], F f) {
  const float four[4] = {x[0], x[1], 0.0f, 0.0f};
  const auto quantized = static_cast<uint16_t>(pack_e4m3(four, f));
  if (aligned(p, 2)) {
    *reinterpret_cast<uint16_t*>(p) = quantized;
  } else {
    store_u16(p, quantized);
  }
}

// A lane has the kValues values from `column` on, a multiple of kValues; neighbouring lanes have neighbouring values. amax: the largest
// magnitude of the lane's block of 64. fp8_ds_mla_v4, bf16 and fp8_tensor.
template <int kValues>
__device__ __forceinline__ void store_channels(const PagedCache& cache, const RowAddress& to, const float (&x)[kValues], float amax,
                                               int column, int lane) {
  if (cache.format == KvFormat::fp8_tensor) return store_quantized(to.data + column, x, TensorScale(cache.scale, false));
  if (cache.format == KvFormat::bf16) return store_bf16(to.data + 2 * column, x);
  const Rounded<kValues> rounded(x);
  constexpr int kLanes = kKvBlock / kValues;
  const auto scale = BlockScale::of_e4m3(fmaxf(bf16_low(ptx::cvt_bf16x2(amax, 0.0f)), kKvAmaxFloor));
  const bool rope = column >= kV4NopeDim;
  if (rope) {
    rounded.store(to.data + kV4NopeDim + 2 * (column - kV4NopeDim));
  } else {
    store_quantized(to.data + column, rounded.values, [s = scale.inverse()](float v) { return __fmul_rn(v, s); });
  }
  if (lane % kLanes == 0) to.scales[column / kKvBlock] = rope ? 0 : scale.byte();
}

}  // namespace strata::cuda
