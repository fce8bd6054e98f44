// The arithmetic of combining a head's splits (V4 14.4), base 2.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/epilogue.cuh"

namespace strata::cuda::sparse_decode {

// sum: of the weights. 0: no split has a row. The largest lse does not show that, because fmaxf ignores NaN.
struct CombinedHead {
  float max_lse;  // the maximum that the weights use

  __device__ __forceinline__ explicit CombinedHead(float largest_lse) : max_lse(largest_lse == -INFINITY ? 0.0f : largest_lse) {}
  __device__ __forceinline__ float weight(float lse) const { return ptx::ex2(lse - max_lse); }
  // The factor of the weighted splits.
  __device__ __forceinline__ float inverse(float sum, float sink) const {
    return sum == 0.0f ? 0.0f : ptx::rcp(sum + ptx::ex2(sink - max_lse));
  }
  __device__ __forceinline__ void store(const DecodeArgs& a, int32_t token, int32_t head, float sum, float maximum) const {
    store_head(a, token, head, sum == 0.0f, max_lse + __log2f(sum), maximum);
  }
};

}  // namespace strata::cuda::sparse_decode
