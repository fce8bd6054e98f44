// The norm and rotation of a query head of 512 dimensions, of which the last 64 are rotated (V4 8.1). A warp has a head; a thread has two
// runs of 8 dimensions, 256 apart. All kernels that use it get the same bits from the same values.
#pragma once

#include "backends/cuda/device/values.cuh"
#include "backends/cuda/device/warp.cuh"

namespace strata::cuda {

inline constexpr int kQueryRun = 8, kQueryDim = 2 * kQueryRun * kWarpSize, kQueryRotary = 64;

// The first of a thread's rotary dimensions, in its second run; below 0 it has none.
__device__ __forceinline__ int query_rope_dim(int lane) { return kQueryDim / 2 + kQueryRun * lane - (kQueryDim - kQueryRotary); }

// Loads the angles of a thread's rotary dimensions. No branch: after one the other lanes would wait for the loads too.
template <bool kWide>
__device__ __forceinline__ void load_query_angles(const float* row, int lane, float (&angles)[kQueryRun]) {
  load_angles<kWide>(row, kQueryRotary, max(query_rope_dim(lane), 0), angles);
}

// For several heads, so that one head's latency overlaps the other's work. `unit`: a power of two; results are multiples of it. Whole
// warps.
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
    if (query_rope_dim(lane) >= 0) rotate_values(high[i], angles);
  }
}

}  // namespace strata::cuda
