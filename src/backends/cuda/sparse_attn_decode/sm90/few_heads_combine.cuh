// Combines the splits of a token's heads in a cluster of the CTAs that computed them. Of n splits each CTA combines every n-th head. The
// other CTAs store their splits of that head into its shared memory; each 16-byte store arrives on a barrier there, and the CTA waits for
// those stores alone. Splits are neither written to memory nor read by another kernel, and no CTA waits until another has read.
#pragma once

#include "backends/cuda/device/add_halves.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/cluster_async.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_shared.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/combined_head.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// A unit: what a values thread has of a head, a pair of dimensions in each of its group's blocks of 64.
struct Unit {
  int half, warp, g;  // of the values group; of its warp and lane

  static __device__ __forceinline__ Unit of(int number) { return {number / 32, number / 8 % 4, number % 8}; }
  __device__ __forceinline__ int number() const { return 32 * half + 8 * warp + g; }
  __device__ __forceinline__ int pair() const { return 8 * warp + g; }  // index in a block
};

// Computes where the CTA's splits are sent, and what it waits for. By the first warp, for a token that is split.
template <class Shared>
__device__ __forceinline__ void prepare_combine(const DecodeArgs& a, Shared& shared, const TokenRows& rows, int32_t split,
                                                int32_t first_head) {
  auto& combine = shared.combine;
  const int lane = threadIdx.x % 32, heads = min(Shared::kHeads, a.num_heads - first_head);
  const int splits = __popc(__ballot_sync(~0u, lane < a.num_splits && rows.has(lane)));
  int rank = lane, slot = split;
  for (; rank >= splits; rank -= splits) slot += splits;
  const int own_heads = __popc(__ballot_sync(~0u, lane < heads && rank == split));
  const auto mapped = [&](const auto& there) { return ptx::map_shared(ptx::shared_address(&there), rank); };
  if (lane < heads) combine.to[lane] = {mapped(combine.values[slot]), mapped(combine.ends[slot]), mapped(combine.arrived)};
  if (lane == 0) {
    combine.splits = splits, combine.own_heads = own_heads;
    ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&combine.arrived),
                                   own_heads * splits * static_cast<int>(sizeof(combine.values[0]) + sizeof(combine.ends[0])));
  }
}

template <class Shared>
__device__ __forceinline__ void send_values(const Shared& shared, int head, Unit unit, const uint32_t (&pairs)[4]) {
  const auto to = shared.combine.to[head];
  ptx::store_async(to.values + 16 * unit.number(), {pairs[0], pairs[1], pairs[2], pairs[3]}, to.arrived);
}
template <class Shared>
__device__ __forceinline__ void send_end(const Shared& shared, int head, float lse, float maximum, float unshift) {
  const auto to = shared.combine.to[head];
  ptx::store_async(to.end, {__float_as_uint(lse), __float_as_uint(maximum), __float_as_uint(unshift), 0}, to.arrived);
}

// Combines the CTA's own heads, by the logits groups: a thread has one unit of every fourth head.
template <class Shared>
__device__ __forceinline__ void combine_own_heads(const DecodeArgs& a, const Shared& shared, int32_t token, int32_t rank,
                                                  int32_t first_head) {
  const auto& combine = shared.combine;
  constexpr int kAtATime = kLogitGroups * kWarpgroup / kCombineUnits;
  const int thread = static_cast<int>(threadIdx.x), splits = combine.splits, own_heads = combine.own_heads;
  const Unit unit = Unit::of(thread % kCombineUnits);
  const bool rotates = unit.half == 1 && a.positions != nullptr;
  const float2 rotation = rotates ? load_pair_rotation(a, token, unit.pair()) : float2{};
  const int32_t batch = divide(token, a.num_queries), query = token - batch * a.num_queries;
  uint16_t* const out = a.out + batch * a.out_batch_stride + query * a.out_query_stride + kValueDim / 2 * unit.half + 2 * unit.pair();
  ptx::mbarrier_wait_cluster(ptx::shared_address(&combine.arrived), 0);
#pragma unroll 1
  for (int own = thread / kCombineUnits; own < own_heads; own += kAtATime) {
    const int first_slot = own * splits, in_block = rank + first_slot, head = first_head + in_block;
    uint4 values[kMaxClusterSplits];
    float weights[kMaxClusterSplits], unshift[kMaxClusterSplits], largest = -INFINITY, maximum = -INFINITY;
#pragma unroll
    for (int p = 0; p < kMaxClusterSplits; ++p) {
      if (p >= splits) break;
      values[p] = combine.values[first_slot + p][unit.number()];
      const float4 end = combine.ends[first_slot + p];
      weights[p] = end.x, unshift[p] = end.z;
      largest = fmaxf(largest, end.x), maximum = fmaxf(maximum, end.y);
    }
    const CombinedHead combined(largest);
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < kMaxClusterSplits; ++p) {
      if (p >= splits) break;
      weights[p] = combined.weight(weights[p]);
      sum += weights[p];
    }
    const float inverse = combined.inverse(sum, shared.sink[in_block]);
    float sums[8] = {};
#pragma unroll
    for (int p = 0; p < kMaxClusterSplits; ++p) {
      if (p >= splits) break;
      add_weighted(sums, weights[p] * unshift[p] * inverse, values[p]);
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      uint32_t pair = ptx::cvt_bf16x2(sums[2 * b], sums[2 * b + 1]);
      if (b == 3 && rotates) pair = rotate_back(pair, rotation);
      *reinterpret_cast<uint32_t*>(out + head * a.out_head_stride + kChunkDims * b) = pair;
    }
    if (unit.number() == 0) combined.store(a, token, head, sum, maximum);
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
