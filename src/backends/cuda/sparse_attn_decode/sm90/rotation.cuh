// Rotates results back by their token's position, bit for bit as inverse_rope after attention: the value rounded to bf16 is rotated in fp32
// and rounded again.
#pragma once

#include "backends/cuda/device/values.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/config.h"

namespace strata::cuda::sparse_decode {

// Cosine and sine of each pair of rotary dimensions.
using Rotation = float2[kRotaryDims / 2];

// The lane's pair of a token's rotation.
__device__ __forceinline__ float2 load_pair_rotation(const DecodeArgs& a, int32_t token, int lane) {
  const float* const row = a.cos_sin + a.positions[token] * a.cos_sin_stride + lane;
  return {row[0], row[kRotaryDims / 2]};
}
// By a warp; does nothing if the call does not rotate.
__device__ __forceinline__ void load_rotation(const DecodeArgs& a, int32_t token, Rotation& rotation) {
  const int lane = threadIdx.x % 32;
  if (a.positions != nullptr) rotation[lane] = load_pair_rotation(a, token, lane);
}

// Rotates a pair of bf16.
__device__ __forceinline__ uint32_t rotate_back(uint32_t pair, float2 by) {
  float values[2] = {bf16_low(pair), bf16_high(pair)};
  const float angles[2] = {by.x, by.y};
  rotate_values(values, angles, true);
  return ptx::cvt_bf16x2(values[0], values[1]);
}
// Rotates four pairs.
__device__ __forceinline__ uint4 rotate_back(uint4 pairs, const float2* by) {
  return {rotate_back(pairs.x, by[0]), rotate_back(pairs.y, by[1]), rotate_back(pairs.z, by[2]), rotate_back(pairs.w, by[3])};
}

}  // namespace strata::cuda::sparse_decode
