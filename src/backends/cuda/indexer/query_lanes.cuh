// How lanes share the indexer's queries of 128 values. Eight lanes hold a head, each 8 values of its lower half and 8 of its upper half, as
// bf16 pairs that are unpacked only for the rotation: every lane has rotary values.
#pragma once

#include "backends/cuda/device/bf16_words.cuh"
#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/indexer/indexer_query.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "formats/quantize.h"

namespace strata::cuda::indexer_query {

inline constexpr int kDim = 128, kHalf = kDim / 2, kHalves = 2;
inline constexpr int kHeadLanes = 8, kValues = kHalf / kHeadLanes, kWords = kValues / 2;
inline constexpr int kHeads = kWarpSize / kHeadLanes;  // heads of a warp at a time

// Angles for a lane's 8 rotary values. Interleaved: four pairs of its own. Half-split: the partners are in the lane four further or four
// before.
template <RopePairing kPairing>
struct LaneRotation {
  static constexpr bool kInterleaved = kPairing == RopePairing::interleaved;
  static constexpr int kPairs = kInterleaved ? kValues / 2 : kValues;
  float cosine[kPairs], sine[kPairs];  // half-split: the sine includes the sign of the lane's half

  __device__ __forceinline__ void load(const IndexerQueryArgs& a, int64_t t, int lane) {
    const int column = lane % kHeadLanes * kValues;
    const float* const row = a.cos_sin + a.positions[t] * a.cos_sin_stride + (kInterleaved ? column / 2 : column % (kHalf / 2));
#pragma unroll
    for (int i = 0; i < kPairs; i += 4) {
      const float4 c = *reinterpret_cast<const float4*>(row + i), s = *reinterpret_cast<const float4*>(row + kHalf / 2 + i);
      cosine[i] = c.x, cosine[i + 1] = c.y, cosine[i + 2] = c.z, cosine[i + 3] = c.w;
      sine[i] = s.x, sine[i + 1] = s.y, sine[i + 2] = s.z, sine[i + 3] = s.w;
    }
    if constexpr (!kInterleaved) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) sine[i] = column < kHalf / 2 ? -sine[i] : sine[i];
    }
  }

  __device__ __forceinline__ void rotate(uint32_t (&words)[kWords]) const {
    float x[kValues], rotated[kValues];
    unpack_words(words, x);
    if constexpr (kInterleaved) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        rotated[2 * i] = fmaf(x[2 * i], cosine[i], -(x[2 * i + 1] * sine[i]));
        rotated[2 * i + 1] = fmaf(x[2 * i + 1], cosine[i], x[2 * i] * sine[i]);
      }
    } else {
      uint32_t partner_words[kWords];
      float partner[kValues];
#pragma unroll
      for (int i = 0; i < kWords; ++i) partner_words[i] = __shfl_xor_sync(kAllLanes, words[i], kHeadLanes / 2);
      unpack_words(partner_words, partner);
#pragma unroll
      for (int i = 0; i < kValues; ++i) rotated[i] = fmaf(x[i], cosine[i], partner[i] * sine[i]);
    }
    pack_words(rotated, words);
  }
};

struct Magnitudes {
  uint32_t words[kWords];

  __device__ __forceinline__ explicit Magnitudes(const uint32_t (&signed_words)[kWords]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = signed_words[i] & 0x7FFF7FFFu;
  }
  // The largest magnitude in either half of a word; NaN does not count.
  __device__ __forceinline__ uint32_t most() const {
    return ptx::max_bf16x2(ptx::max_bf16x2(words[0], words[1]), ptx::max_bf16x2(words[2], words[3]));
  }
  // The same, or NaN if there is one.
  __device__ __forceinline__ uint32_t most_or_nan() const {
    return ptx::max_nan_bf16x2(ptx::max_nan_bf16x2(words[0], words[1]), ptx::max_nan_bf16x2(words[2], words[3]));
  }
};

// Over kLanes lanes, and both halves of their words.
template <int kLanes>
__device__ __forceinline__ float lanes_amax(uint32_t most) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) most = ptx::max_bf16x2(most, __shfl_xor_sync(kAllLanes, most, step));
  return fmaxf(bf16_low(most), bf16_high(most));
}

// e4m3_exponent and the exponent of quantize_mxfp4_block without their divisions: 448 = 1.75 * 2^8 and 6 = 1.5 * 2^2, so a mantissa above
// 1.75 or 1.5 carries into the exponent. For a >= 2^-100 and a >= 6 * 2^-126.
__device__ __forceinline__ int exponent_e4m3(float a) {
  return a == INFINITY ? 128 : static_cast<int>((float_bits(a) + 0x1FFFFFu) >> 23) - (127 + 8);
}
__device__ __forceinline__ int exponent_mxfp4(float a) {
  return a == INFINITY ? 127 : static_cast<int>((float_bits(a) + 0x3FFFFFu) >> 23) - (127 + 2);
}

// words * 2^-exponent. Only what is below the smallest representable value is lost.
__device__ __forceinline__ void scale(int exponent, uint32_t (&words)[kWords]) {
  const uint32_t factor = float_bits(pow2(-exponent)) >> 16;
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = ptx::mul_bf16x2(words[i], factor * 0x10001u);
}

// Quantises a lane's values of a head, its lower and its upper eight; returns the head's scale.
__device__ __forceinline__ float encode_e4m3(const uint32_t (&words)[kHalves][kWords], float amax_floor, uint2 (&quantized)[kHalves]) {
  const uint32_t most = ptx::max_bf16x2(Magnitudes(words[0]).most(), Magnitudes(words[1]).most());
  const int exponent = exponent_e4m3(fmaxf(lanes_amax<kHeadLanes>(most), amax_floor));
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const uint32_t(&w)[kWords] = words[half];
    uint32_t scaled[kWords] = {w[0], w[1], w[2], w[3]};
    scale(exponent, scaled);
    quantized[half] = make_uint2(e4m3_word({scaled[0], scaled[1]}, {w[0], w[1]}), e4m3_word({scaled[2], scaled[3]}, {w[2], w[3]}));
  }
  return exponent < 128 ? pow2(exponent) : NAN;  // 128 stands for an infinite amax
}

}  // namespace strata::cuda::indexer_query
