// A vector of the indexer, of any dim, as fp32 in shared memory, worked on by one warp: for shapes that the models do not have, and where
// a step has one vector per token, which is too little work to be measured.
#pragma once

#include "backends/cuda/device/hadamard.cuh"
#include "formats/bf16.h"
#include "formats/rope.h"

namespace strata::cuda {

// Rotates the lanes from `first` on, every one rounded to bf16.
__device__ inline void rotate_vector(float* x, const float* cos_sin, int32_t first, int32_t rotary, RopePairing pairing, int lane) {
  for (int32_t i = lane; i < rotary / 2; i += kWarpSize) {
    float& a = x[first + rope_first(i, rotary, pairing)];
    float& b = x[first + rope_second(i, rotary, pairing)];
    const RopePair<float> rotated = rotate_pair(a, b, cos_sin, i, rotary, false);
    a = round_to_bf16(rotated.first);
    b = round_to_bf16(rotated.second);
  }
  __syncwarp();
}

// dim is a power of two.
__device__ inline void hadamard_vector(float* x, int32_t dim, int lane) {
  for (int32_t half = 1; half < dim; half *= 2) {
    for (int32_t pair = lane; pair < dim / 2; pair += kWarpSize) {
      const int32_t i = pair / half * 2 * half + pair % half;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
    __syncwarp();
  }
  const float scale = hadamard_scale(dim);
  for (int32_t i = lane; i < dim; i += kWarpSize) x[i] *= scale;
  __syncwarp();
}

}  // namespace strata::cuda
