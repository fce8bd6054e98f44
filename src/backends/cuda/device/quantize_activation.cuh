// The quantiser of activations, for kernels that have a token's channels in registers.
#pragma once

#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/device/warp.cuh"
#include "formats/quantize.h"

namespace strata::cuda {

inline constexpr int kQuantizeChannels = 8;                                  // per lane
inline constexpr int kQuantizeLanes = kActivationBlock / kQuantizeChannels;  // per scale

// Of a lane's values.
template <int kChannels>
__device__ __forceinline__ float largest_of(const float (&values)[kChannels]) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) largest = fmaxf(largest, absolute(values[i]));
  return largest;
}

// Quantises 4 or 8 of the channels under one scale to words of e4m3, and returns the scale; `largest`: of all channels under the scale.
template <int kChannels>
__device__ __forceinline__ float quantize_under(float largest, const float (&values)[kChannels], bool ue8m0,
                                                uint32_t (&quantized)[kChannels / 4]) {
  largest = fmaxf(largest, kActivationAmaxFloor);
  const auto pack = [&](auto&& scaled) {
#pragma unroll
    for (int i = 0; i < kChannels / 4; ++i) quantized[i] = pack_e4m3(values + 4 * i, scaled);
  };
  if (ue8m0) {
    const BlockScale scale = BlockScale::of_e4m3(largest);
    pack([inverse = scale.inverse()](float v) { return __fmul_rn(v, inverse); });
    return scale.value();
  }
  const float scale = __fdiv_rn(largest, kE4m3Max);
  pack([scale](float v) { return __fdiv_rn(v, scale); });
  return scale;
}

// strata::quantize_activation by the lanes that have a scale's channels, 4 or 8 each; channels that do not exist are 0.
template <int kChannels>
__device__ __forceinline__ float quantize_lanes(const float (&values)[kChannels], bool ue8m0, uint32_t (&quantized)[kChannels / 4]) {
  return quantize_under(lanes_max<kActivationBlock / kChannels>(largest_of(values)), values, ue8m0, quantized);
}

// Stores the first `count` of a lane's e4m3 values to memory of any alignment.
__device__ __forceinline__ void store_quantized(uint8_t* to, int count, const uint32_t (&quantized)[2]) {
  if (count == kQuantizeChannels) {
    store_words(to, quantized);
  } else {
    for (int i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(quantized[i / 4] >> 8 * (i % 4));
  }
}

}  // namespace strata::cuda
