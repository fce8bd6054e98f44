// The norm and rotation of a query head of 512 lanes, of which the last 64 are rotated (V4 8.1): a warp a head, two runs of 8 lanes a
// thread, 256 apart. Whoever makes queries makes the same bits of the same values.
#pragma once

#include "backends/cuda/device/values.cuh"
#include "backends/cuda/device/warp.cuh"

namespace strata::cuda {

inline constexpr int kQueryRun = 8, kQueryDim = 2 * kQueryRun * kWarpSize, kQueryRotary = 64;

// The first of a thread's rotary lanes, those of its second run; below 0 it has none.
__device__ __forceinline__ int query_rope_lane(int lane) { return kQueryDim / 2 + kQueryRun * lane - (kQueryDim - kQueryRotary); }

// The angles of a thread's rotary lanes. No branch: behind one the other lanes would wait for them too.
template <bool kWide>
__device__ __forceinline__ void load_query_angles(const float* row, int lane, float (&angles)[kQueryRun]) {
  load_angles<kWide>(row, kQueryRotary, max(query_rope_lane(lane), 0), angles);
}

// Of several heads, so that one's latencies are the other's work. `unit`: a power of two, what results are multiples of. Whole warps.
template <int kHeads>
__device__ __forceinline__ void norm_and_rotate(float (&low)[kHeads][kQueryRun], float (&high)[kHeads][kQueryRun],
                                                const float (&angles)[kQueryRun], float eps, int lane, float unit = 1.0f) {
  float sum[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    float of_low = 0.0f, of_high = 0.0f;
#pragma unroll
    for (int j = 0; j < kQueryRun; ++j) of_low = fmaf(low[i][j], low[i][j], of_low), of_high = fmaf(high[i][j], high[i][j], of_high);
    sum[i] = of_low + of_high;
  }
#pragma unroll
  for (int i = 0; i < kHeads; ++i) sum[i] = lanes_sum(sum[i]);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const float scale = rsqrtf(fmaf(sum[i], 1.0f / kQueryDim, eps)) * unit;
#pragma unroll
    for (int j = 0; j < kQueryRun; ++j) {
      low[i][j] *= scale;
      high[i][j] *= scale;
    }
    if (query_rope_lane(lane) >= 0) rotate_values(high[i], angles);
  }
}

}  // namespace strata::cuda
