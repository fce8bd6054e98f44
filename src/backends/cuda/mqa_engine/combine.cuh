// Combines the splits of each token's rows. A group of warps per head divides the splits among its warps, with sixteen dimensions of the
// head per thread. Floor: each split is read once, 1 KB. In practice the time is that of a few dependent loads, so a warp issues the loads
// of all its splits together.
#pragma once

#include "backends/cuda/device/add_halves.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/mqa_engine/pipeline.cuh"
#include "backends/cuda/mqa_engine/plan.h"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/grid.h"

namespace strata::cuda::sparse_prefill {

inline constexpr int kCombineWarps = 8, kCombineThreads = kCombineWarps * kWarpSize, kSplitsAtOnce = 4;

// Eight dimensions of the left half of a head, and eight of the right.
struct HeadDims {
  float v[2][8];
};

// kGroup warps per head. At most as many splits as a warp has lanes; each lane has one split's lse.
template <class Args, int kGroup>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const __grid_constant__ Args a) {
  __shared__ HeadDims shared[kGroup > 1 ? kCombineWarps : 1][kWarpSize];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, in_group = warp % kGroup;
  const int64_t rows = int64_t{a.num_tokens} * a.num_heads, row = int64_t{blockIdx.x} * (kCombineWarps / kGroup) + warp / kGroup;
  const bool exists = row < rows;
  const int64_t first = exists ? row : 0;
  start_early();
  const auto lse_of = [&](int32_t split) {
    return __uint_as_float(ptx::ld_if(split < a.num_splits, a.split_lse + first + split * rows, 0xFF800000u));
  };
  float sink = -INFINITY, maximum = -INFINITY;
  if constexpr (Args::kSparse) {
    sink = __uint_as_float(
               ptx::ld_if(a.sink != nullptr, a.sink + static_cast<uint32_t>(first) % static_cast<uint32_t>(a.num_heads), 0xFF800000u)) *
           kLog2e;
    maximum = __uint_as_float(ptx::ld_if(lane < a.num_splits, a.split_max + first + lane * rows, 0xFF800000u));
  }
  const float lane_lse = lse_of(lane);
  // Splits are loaded before it is known which of them exist: all have space.
  HeadDims out = {};
  float base = 0.0f;
  for (int32_t split = in_group; split < a.num_splits; split += kSplitsAtOnce * kGroup) {
    uint4 values[kSplitsAtOnce][2];
    float2 factors[kSplitsAtOnce];
    float lse[kSplitsAtOnce];
#pragma unroll
    for (int k = 0; k < kSplitsAtOnce; ++k) {
      const int32_t at = split + k * kGroup;
      const bool valid = at < a.num_splits;
      const int64_t index = first + at * rows;
      const uint4* of_split = reinterpret_cast<const uint4*>(a.split_out + index * kValueDim) + lane;
      lse[k] = lse_of(at);
      factors[k].x = __uint_as_float(ptx::ld_if(valid, &a.split_factors[index].x, 0));
      factors[k].y = __uint_as_float(ptx::ld_if(valid, &a.split_factors[index].y, 0));
#pragma unroll
      for (int half = 0; half < 2; ++half) values[k][half] = ptx::ld_once_if(valid, of_split + half * kWarpSize);
    }
    if (split == in_group) {
      const float largest = lanes_max(lane_lse);
      base = largest == -INFINITY ? 0.0f : largest;
    }
#pragma unroll
    for (int k = 0; k < kSplitsAtOnce; ++k) {
      if (lse[k] == -INFINITY) continue;  // the split's memory was not written
      const float weight = ptx::ex2(lse[k] - base);
      add_weighted(out.v[0], weight * factors[k].x, values[k][0]);
      add_weighted(out.v[1], weight * factors[k].y, values[k][1]);
    }
  }
  const float total = lanes_sum(ptx::ex2(lane_lse - base));
  if constexpr (kGroup > 1) {
    if (in_group > 0) shared[warp][lane] = out;
    __syncthreads();
    if (in_group > 0) return;
#pragma unroll
    for (int other = 1; other < kGroup; ++other) {
#pragma unroll
      for (int i = 0; i < 16; ++i) out.v[i / 8][i % 8] += shared[warp + other][lane].v[i / 8][i % 8];
    }
  }
  if constexpr (Args::kSparse) maximum = lanes_max(maximum);
  if (!exists) return;
  const bool empty = total == 0.0f;
  const float inverse = empty ? 0.0f : 1.0f / (total + ptx::ex2(sink - base));
  const int64_t token = row / a.num_heads, head = row - token * a.num_heads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint16_t* target = a.out + token * a.out_token_stride + head * a.out_head_stride + half * (kValueDim / 2) + 8 * lane;
    store_dims(target, out.v[half], inverse, a.out_aligned);
  }
  if (lane > 0) return;
  if (a.lse != nullptr) a.lse_of(token, head) = empty ? INFINITY : (base + __log2f(total)) * kLn2;
  if constexpr (Args::kSparse) {
    if (a.max_logits != nullptr) a.max_of(token, head) = maximum * kLn2;
  }
}

// As many warps per head as can have all of its splits in flight at once. With few splits one warp loads them in two iterations, which is
// as fast. fixed_order: the order of a sum must not depend on how many splits other tokens have.
template <class Args>
void launch_combine(const Args& args, bool fixed_order, const ExecutionContext& context) {
  static_assert(kMaxSplits <= kWarpSize);
  const int group = fixed_order || args.num_splits <= 2 * kSplitsAtOnce ? 1 : args.num_splits <= 4 * kSplitsAtOnce ? 4 : kCombineWarps;
  const auto kernel = group == 1 ? combine_kernel<Args, 1> : group == 4 ? combine_kernel<Args, 4> : combine_kernel<Args, kCombineWarps>;
  const unsigned blocks = blocks_for(int64_t{args.num_tokens} * args.num_heads, kCombineWarps / group);
  launch_early("combine_kernel", kernel, {.grid = dim3(blocks), .block = dim3(kCombineThreads)}, context, args);
}

}  // namespace strata::cuda::sparse_prefill
