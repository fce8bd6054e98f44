// Merges the parts of a token's heads where the blocks that have them are a cluster. Of n parts each block merges every n-th head: the
// others store what they have of it into its shared memory, every 16 bytes arriving on a barrier there, and it waits for those alone. Parts
// are neither written to memory nor read by another kernel, and no block waits for another to have read.
#pragma once

#include "backends/cuda/device/add_halves.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/cluster_async.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_shared.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/merged_head.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// A unit of a head is what a thread of the values has of it: a pair of lanes in each of its group's blocks of 64.
struct Unit {
  int half, warp, g;  // of the group of values; of its warp and lane

  static __device__ __forceinline__ Unit of(int number) { return {number / 32, number / 8 % 4, number % 8}; }
  __device__ __forceinline__ int number() const { return 32 * half + 8 * warp + g; }
  __device__ __forceinline__ int pair() const { return 8 * warp + g; }  // in a block
};

// Where the block's parts go, and what it waits for; the first warp, of a token that is cut.
template <class Shared>
__device__ __forceinline__ void prepare_merge(const DecodeArgs& a, Shared& shared, const TokenRows& rows, int32_t split,
                                              int32_t first_head) {
  auto& merge = shared.merge;
  const int lane = threadIdx.x % 32, heads = min(Shared::kHeads, a.num_heads - first_head);
  const int parts = __popc(__ballot_sync(~0u, lane < a.num_splits && rows.has(lane)));
  int rank = lane, place = split;
  for (; rank >= parts; rank -= parts) place += parts;
  const int own_heads = __popc(__ballot_sync(~0u, lane < heads && rank == split));
  const auto mapped = [&](const auto& there) { return ptx::map_shared(ptx::shared_address(&there), rank); };
  if (lane < heads) merge.to[lane] = {mapped(merge.values[place]), mapped(merge.ends[place]), mapped(merge.arrived)};
  if (lane == 0) {
    merge.parts = parts, merge.own_heads = own_heads;
    ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&merge.arrived),
                                   own_heads * parts * static_cast<int>(sizeof(merge.values[0]) + sizeof(merge.ends[0])));
  }
}

template <class Shared>
__device__ __forceinline__ void send_values(const Shared& shared, int head, Unit unit, const uint32_t (&pairs)[4]) {
  const auto to = shared.merge.to[head];
  ptx::store_async(to.values + 16 * unit.number(), {pairs[0], pairs[1], pairs[2], pairs[3]}, to.arrived);
}
template <class Shared>
__device__ __forceinline__ void send_end(const Shared& shared, int head, float lse, float maximum, float unshift) {
  const auto to = shared.merge.to[head];
  ptx::store_async(to.end, {__float_as_uint(lse), __float_as_uint(maximum), __float_as_uint(unshift), 0}, to.arrived);
}

// The block's own heads, by the groups of logits: a thread has a unit of every fourth of them.
template <class Shared>
__device__ __forceinline__ void merge_own_heads(const DecodeArgs& a, const Shared& shared, int32_t token, int32_t rank,
                                                int32_t first_head) {
  const auto& merge = shared.merge;
  constexpr int kAtATime = kLogitGroups * kWarpgroup / kMergeUnits;
  const int thread = static_cast<int>(threadIdx.x), parts = merge.parts, own_heads = merge.own_heads;
  const Unit unit = Unit::of(thread % kMergeUnits);
  const bool rotates = unit.half == 1 && a.positions != nullptr;
  const float2 rotation = rotates ? load_pair_rotation(a, token, unit.pair()) : float2{};
  const int32_t batch = divide(token, a.num_queries), query = token - batch * a.num_queries;
  uint16_t* const out = a.out + batch * a.out_batch_stride + query * a.out_query_stride + kValueDim / 2 * unit.half + 2 * unit.pair();
  ptx::mbarrier_wait_cluster(ptx::shared_address(&merge.arrived), 0);
#pragma unroll 1
  for (int own = thread / kMergeUnits; own < own_heads; own += kAtATime) {
    const int first_place = own * parts, in_block = rank + first_place, head = first_head + in_block;
    uint4 values[kMostClusterParts];
    float weights[kMostClusterParts], unshift[kMostClusterParts], largest = -INFINITY, maximum = -INFINITY;
#pragma unroll
    for (int p = 0; p < kMostClusterParts; ++p) {
      if (p >= parts) break;
      values[p] = merge.values[first_place + p][unit.number()];
      const float4 end = merge.ends[first_place + p];
      weights[p] = end.x, unshift[p] = end.z;
      largest = fmaxf(largest, end.x), maximum = fmaxf(maximum, end.y);
    }
    const MergedHead merged(largest);
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < kMostClusterParts; ++p) {
      if (p >= parts) break;
      weights[p] = merged.weight(weights[p]);
      sum += weights[p];
    }
    const float inverse = merged.inverse(sum, shared.sink[in_block]);
    float sums[8] = {};
#pragma unroll
    for (int p = 0; p < kMostClusterParts; ++p) {
      if (p >= parts) break;
      add_weighted(sums, weights[p] * unshift[p] * inverse, values[p]);
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      uint32_t pair = ptx::cvt_bf16x2(sums[2 * b], sums[2 * b + 1]);
      if (b == 3 && rotates) pair = rotate_back(pair, rotation);
      *reinterpret_cast<uint32_t*>(out + head * a.out_head_stride + kChunkLanes * b) = pair;
    }
    if (unit.number() == 0) merged.store(a, token, head, sum, maximum);
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
