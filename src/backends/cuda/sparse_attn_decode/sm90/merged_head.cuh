// The arithmetic of merging a head's parts (V4 14.4), base 2.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/epilogue.cuh"

namespace strata::cuda::sparse_decode {

// sum: of the weights. 0: no part has a row; the largest lse does not say so, as a maximum passes over what is no number.
struct MergedHead {
  float subtracted;  // from what weights are powers of

  __device__ __forceinline__ explicit MergedHead(float largest_lse) : subtracted(largest_lse == -INFINITY ? 0.0f : largest_lse) {}
  __device__ __forceinline__ float weight(float lse) const { return ptx::ex2(lse - subtracted); }
  // What weighted parts are multiplied by.
  __device__ __forceinline__ float inverse(float sum, float sink) const {
    return sum == 0.0f ? 0.0f : ptx::rcp(sum + ptx::ex2(sink - subtracted));
  }
  __device__ __forceinline__ void store(const DecodeArgs& a, int32_t token, int32_t head, float sum, float maximum) const {
    store_head(a, token, head, sum == 0.0f, subtracted + __log2f(sum), maximum);
  }
};

}  // namespace strata::cuda::sparse_decode
