// The quantiser of activations, for kernels that have a token's channels in registers.
#pragma once

#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/device/warp.cuh"
#include "formats/quantize.h"

namespace strata::cuda {

inline constexpr int kCodeChannels = 8;                              // of a lane
inline constexpr int kCodeLanes = kActivationBlock / kCodeChannels;  // of a scale

// Of a lane's values.
template <int kChannels>
__device__ __forceinline__ float largest_of(const float (&values)[kChannels]) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) largest = fmaxf(largest, absolute(values[i]));
  return largest;
}

// Codes of 4 or 8 of the channels under one scale as words, and the scale; `largest`: of all of them.
template <int kChannels>
__device__ __forceinline__ float quantize_under(float largest, const float (&values)[kChannels], bool ue8m0,
                                                uint32_t (&codes)[kChannels / 4]) {
  largest = fmaxf(largest, kActivationAmaxFloor);
  const auto pack = [&](auto&& scaled) {
#pragma unroll
    for (int i = 0; i < kChannels / 4; ++i) codes[i] = pack_e4m3(values + 4 * i, scaled);
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

// strata::quantize_activation by the lanes that have a scale's channels, 4 or 8 each, those that do not exist being 0.
template <int kChannels>
__device__ __forceinline__ float quantize_lanes(const float (&values)[kChannels], bool ue8m0, uint32_t (&codes)[kChannels / 4]) {
  return quantize_under(lanes_max<kActivationBlock / kChannels>(largest_of(values)), values, ue8m0, codes);
}

// The first `count` of a lane's codes to memory of any alignment.
__device__ __forceinline__ void store_codes(uint8_t* to, int count, const uint32_t (&codes)[2]) {
  if (count == kCodeChannels) {
    store_words(to, codes);
  } else {
    for (int i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(codes[i / 4] >> 8 * (i % 4));
  }
}

}  // namespace strata::cuda
