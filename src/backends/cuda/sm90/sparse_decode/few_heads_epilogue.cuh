// The end of the decode kernel for few heads: merges its groups' softmax and sums of values, and stores them. It runs once, and code that
// runs once costs more to fetch than to execute: what belongs to a head is computed by one thread, not by all that hold a part of it.
#pragma once

#include "backends/cuda/sm90/sparse_decode/few_heads_consumer.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// A group's sums of weights, of each warp's rows, and what its values are relative to, for the others.
template <class Shared>
__device__ __forceinline__ void tell_sums(Shared& shared, int group, int warp, uint32_t turns, int32_t top_scale) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < Shared::kHeadTiles; ++h) {
    float2 sum = shared.sums[group][h][32 * warp + lane];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      sum = {sum.x + __shfl_xor_sync(~0u, sum.x, lanes), sum.y + __shfl_xor_sync(~0u, sum.y, lanes)};
    }
    if (lane < 4) *reinterpret_cast<float2*>(&shared.columns[group][warp][head_of(2 * h)]) = sum;
  }
  if (warp == 0 && lane == 0) shared.end[group] = {top_scale, turns % 2};
}

// Lane h of one warp: the results of head h, and what the groups' sums of its values become the output by.
template <class Shared>
__device__ __forceinline__ void finish_head(const DecodeArgs& a, Shared& shared, int32_t token, int32_t split, bool is_part) {
  const int head = threadIdx.x % 32;
  if (head >= a.num_heads) return;
  constexpr int kSmallestTop = kScaleRoom + 1;  // of a power of two that is no subnormal
  int32_t top = kSmallestTop;
  float relative[kGroups], subtracted = -INFINITY, maximum = -INFINITY;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    relative[i] = shared.subtracted[i][shared.end[i].turn][head];
    subtracted = fmaxf(subtracted, relative[i]), maximum = fmaxf(maximum, shared.maximum[i][head]);
    top = max(top, shared.end[i].top_scale);
  }
  float sum = 0.0f, weight[kGroups];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    weight[i] = relative[i] == -INFINITY ? 0.0f : ptx::ex2(relative[i] - subtracted);
#pragma unroll
    for (int w = 0; w < 4; ++w) sum += weight[i] * shared.columns[i][w][head];
  }
  const bool empty = sum == 0.0f;
  const float lse = empty ? -INFINITY : subtracted + __log2f(sum), unshift = pow2(top - kExponentBias);
  float own;
  if (!is_part) {
    own = unshift / (sum + ptx::ex2(shared.sink[head] - subtracted));
    store_head(a, token, head, empty, lse, maximum);
  } else {
    own = 1.0f / sum;
    store_part_head(a, part_index(a, token, split, head), lse, maximum, unshift);
  }
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    shared.own[i][head] = empty ? 0.0f : own * weight[i] * ptx::ex2(static_cast<float>(shared.end[i].top_scale - top));
  }
}

// Each group stores the blocks of values that are its first, to which it adds the other's second. The same thread of both has the same
// values, so they meet in shared memory, where no tile is needed any more, at a place of that thread. A thread has eight lanes of a head
// side by side.
template <bool kAligned, class Shared>
__device__ __forceinline__ void store(const DecodeArgs& a, Shared& shared, int group, int warp, uint32_t turns, int32_t top_scale,
                                      int32_t token, int32_t split, bool is_part, const Sums<Shared>& sums) {
  constexpr int kUnits = 4 * Shared::kHeadTiles;
  static_assert(sizeof(shared.rows) >= sizeof(float4) * kGroups * kUnits * kWarpgroup);
  float4* const units = reinterpret_cast<float4*>(shared.rows) + threadIdx.x % kWarpgroup;
  tell_sums(shared, group, warp, turns, top_scale);
  ptx::barrier_sync(kAllConsumers, kConsumerThreads);
  if (group == 0 && warp == 0) finish_head(a, shared, token, split, is_part);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const float(&v)[4] = sums[1][i % 4][i / 4];
    units[(group * kUnits + i) * kWarpgroup] = {v[0], v[1], v[2], v[3]};
  }
  ptx::barrier_sync(kAllConsumers, kConsumerThreads);
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  const int q = threadIdx.x % 4, first_lane = kChunkLanes * (2 * warp + group) + threadIdx.x % 32 / 4 * 8;
  uint16_t* const target =
      is_part ? a.part_out + part_index(a, token, split, 0) * kValueDim : a.out + batch * a.out_batch_stride + query * a.out_query_stride;
  const int64_t head_stride = is_part ? kValueDim : a.out_head_stride;
#pragma unroll
  for (int h = 0; h < Shared::kHeadTiles; ++h) {
    const float2 own = *reinterpret_cast<const float2*>(&shared.own[group][8 * h + 2 * q]),
                 others = *reinterpret_cast<const float2*>(&shared.own[1 - group][8 * h + 2 * q]);
    float2 first[4], second[4];  // of the two heads, pairs of lanes
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float(&v)[4] = sums[0][j][h];
      const float4 other = units[((1 - group) * kUnits + 4 * h + j) * kWarpgroup];
      first[j] = {fmaf(v[0], own.x, other.x * others.x), fmaf(v[2], own.x, other.z * others.x)};
      second[j] = {fmaf(v[1], own.y, other.y * others.y), fmaf(v[3], own.y, other.w * others.y)};
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = 8 * h + 2 * q + i;
      if (head >= a.num_heads) continue;
      const float2(&v)[4] = i == 0 ? first : second;
      const auto word = [&](int j) { return is_part ? ptx::cvt_f16x2(v[j].x, v[j].y) : ptx::cvt_bf16x2(v[j].x, v[j].y); };
      store_16<kAligned>(target + head * head_stride + first_lane, {word(0), word(1), word(2), word(3)});
    }
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
