// Stores the results of the few-token kernels.
#pragma once

#include "backends/cuda/device/pack.cuh"

namespace strata::cuda::sm90 {

// Stores four consecutive features of one token, of which the first `count` exist. Args: as set_output fills them.
template <class Args>
__device__ inline void store_features(const Args& a, int group, int token, int feature, float4 v, int count) {
  const int64_t at = token * a.y_stride + group * a.y_group + feature;
  if (a.y_f32) {
    float* const y = static_cast<float*>(a.y) + at;
    if (count == 4 && aligned(y, 16)) {
      *reinterpret_cast<float4*>(y) = v;
    } else {
      y[0] = v.x;
      if (count > 1) y[1] = v.y;
      if (count > 2) y[2] = v.z;
      if (count > 3) y[3] = v.w;
    }
  } else {
    uint16_t* const y = static_cast<uint16_t*>(a.y) + at;
    const uint32_t low = pack_bf16(v.x, v.y), high = pack_bf16(v.z, v.w);
    if (count == 4 && aligned(y, 8)) {
      *reinterpret_cast<uint2*>(y) = make_uint2(low, high);
    } else {
      y[0] = static_cast<uint16_t>(low);
      if (count > 1) y[1] = static_cast<uint16_t>(low >> 16);
      if (count > 2) y[2] = static_cast<uint16_t>(high);
      if (count > 3) y[3] = static_cast<uint16_t>(high >> 16);
    }
  }
}

}  // namespace strata::cuda::sm90
