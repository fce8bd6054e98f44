// Queries as their projection wrote them: a warp normalises and rotates a head on its way to shared memory. The bits are those that
// qnorm_rope_kv_insert would write before attention (V4 8.1).
#pragma once

#include <type_traits>

#include "backends/cuda/device/query_norm.cuh"
#include "backends/cuda/device/touch.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/config.h"

namespace strata::cuda::sparse_decode {

// Queries that are already normalised.
struct NormalisedQueries {
  static constexpr bool kPresent = false;
  __device__ __forceinline__ NormalisedQueries(const DecodeArgs&, int32_t) {}
  __device__ __forceinline__ void confirm(const DecodeArgs&, int32_t) {}
};

// What a lane needs to normalise a token's queries, if the call requires it. Constructed before the preceding kernel has finished, when the
// position may still change, so that the angles arrive with the queries. Verified by confirm() after that.
struct QueryNorm {
  static constexpr bool kPresent = true;
  // No value of a normalised head exceeds sqrt(512): as multiples of 2^-kShift all fit fp16, for any head.
  static constexpr int kShift = 11;
  float angles[kQueryRun];
  float eps;
  int64_t position = -1;  // below 0: the call has no query prologue

  __device__ __forceinline__ QueryNorm(const DecodeArgs& a, int32_t token) : eps(a.q_eps) {
    if (a.q_positions == nullptr) return;
    position = speculative_load(a.q_positions + token);
    if (position >= 0 && position < a.cos_sin_rows) load(a);
  }
  __device__ __forceinline__ void confirm(const DecodeArgs& a, int32_t token) {
    if (a.q_positions == nullptr) return;
    const int64_t now = speculative_load(a.q_positions + token);
    if (now == position) return;
    position = now;
    load(a);
  }
  __device__ __forceinline__ void load(const DecodeArgs& a) {
    load_query_angles<false>(a.cos_sin + position * a.cos_sin_stride, static_cast<int>(threadIdx.x) % kWarpSize, angles);
  }
  __device__ __forceinline__ bool is_enabled() const { return position >= 0; }
  // Replaces the 16-byte units `lane` and `lane + 32` of each head by the normalised values in bf16, as multiples of 2^-kShift. Whole
  // warps.
  template <int kHeads>
  __device__ __forceinline__ void apply(uint4 (&v)[kHeads][2]) const {
    float low[kHeads][kQueryRun], high[kHeads][kQueryRun];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) unpack_bf16(v[h][0], low[h]), unpack_bf16(v[h][1], high[h]);
    norm_and_rotate(low, high, angles, eps, static_cast<int>(threadIdx.x) % kWarpSize, static_cast<float>(1 << kShift));
    const auto packed = [](const float(&x)[kQueryRun]) -> uint4 {
      return {ptx::cvt_bf16x2(x[0], x[1]), ptx::cvt_bf16x2(x[2], x[3]), ptx::cvt_bf16x2(x[4], x[5]), ptx::cvt_bf16x2(x[6], x[7])};
    };
#pragma unroll
    for (int h = 0; h < kHeads; ++h) v[h][0] = packed(low[h]), v[h][1] = packed(high[h]);
  }
};

template <KvFormat kFormat>
using NormOf = std::conditional_t<kFormat == KvFormat::fp8_ds_mla_v4, QueryNorm, NormalisedQueries>;

}  // namespace strata::cuda::sparse_decode
