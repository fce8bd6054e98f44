// The end of the decode kernel for few heads: merges its groups' softmax and sums of values, and stores them. It runs once, and code that
// runs once costs more to fetch than to execute: what belongs to a head is computed by one thread, not by all that hold a part of it.
#pragma once

#include "backends/cuda/sm90/sparse_decode/few_heads_consumer.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// A group's sums of weights, of each warp's rows, and what they and its values are relative to, for the others.
template <class Shared>
__device__ __forceinline__ void tell_sums(Shared& shared, int group, int warp, Softmax<Shared>& state) {
  const Lane at;
  const int head = state.own_head(at);
  const float sum = combine_lanes(state.sums, at.g, [](float a, float b) { return a + b; });
  if (at.g < kColumns<Shared>) shared.columns[group][warp][head] = sum;
  if (warp != 0) return;
  shared.subtracted[group][head] = state.subtracted, shared.maximum[group][head] = state.maximum;
  shared.top_scale[group] = state.top_scale;
}

// Of head lane % kHeads of a warp: what the groups' sums of its values become the output by. One warp stores the head's results.
template <class Shared>
__device__ __forceinline__ void finish_head(const DecodeArgs& a, Shared& shared, int32_t token, int32_t split, bool is_part,
                                            int32_t first_head, float (&own)[Shared::kGroups]) {
  const int thread = static_cast<int>(threadIdx.x), head = thread % Shared::kHeads;
  int32_t top = kSmallestTop;
  float subtracted = -INFINITY, maximum = -INFINITY;
#pragma unroll
  for (int i = 0; i < Shared::kGroups; ++i) {
    own[i] = shared.subtracted[i][head];
    subtracted = fmaxf(subtracted, own[i]), maximum = fmaxf(maximum, shared.maximum[i][head]);
    top = max(top, shared.top_scale[i]);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Shared::kGroups; ++i) {
    own[i] = own[i] == -INFINITY ? 0.0f : ptx::ex2(own[i] - subtracted);
#pragma unroll
    for (int w = 0; w < 4; ++w) sum += own[i] * shared.columns[i][w][head];
  }
  const bool empty = sum == 0.0f;
  const float unshift = pow2(top - kExponentBias),
              factor = is_part ? 1.0f / sum : unshift / (sum + ptx::ex2(shared.sink[head] - subtracted));
#pragma unroll
  for (int i = 0; i < Shared::kGroups; ++i) {
    own[i] = empty ? 0.0f : factor * own[i] * ptx::ex2(static_cast<float>(shared.top_scale[i] - top));
  }
  if (thread >= Shared::kHeads || first_head + head >= a.num_heads) return;
  const float lse = empty ? -INFINITY : subtracted + __log2f(sum);
  if (is_part) {
    store_part_head(a, part_index(a, token, split, first_head + head), lse, maximum, unshift);
  } else {
    store_head(a, token, first_head + head, empty, lse, maximum);
  }
}

// A group's sums of values in shared memory, where no tile is needed any more.
template <class Shared>
struct SumsInShared {
  static constexpr int kPitch = kValueDim + 4;  // no bank twice
  float sums[Shared::kGroups][Shared::kHeads][kPitch];

  __device__ __forceinline__ void put(int group, int warp, const Sums<Shared>& v) {
    const Lane at;
#pragma unroll
    for (int b = 0; b < kValueDim / kChunkLanes; ++b) {
      const int lane = value_lane<Shared>(b, warp, at.g, 0);
#pragma unroll
      for (int c = 0; c < kColumns<Shared>; ++c) {
        float* const two = &sums[group][head_of(c, at.q)][lane];
        const float first = v[b][c / 2 * 4 + c % 2], second = v[b][c / 2 * 4 + c % 2 + 2];
        if (is_rotated<Shared>(b)) {
          two[0] = first, two[8] = second;
        } else {
          *reinterpret_cast<float2*>(two) = {first, second};
        }
      }
    }
  }
  // Eight lanes of a head, of all groups.
  __device__ __forceinline__ void get(int head, int unit, const float (&own)[Shared::kGroups], float (&v)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = 0.0f;
#pragma unroll
    for (int group = 0; group < Shared::kGroups; ++group) {
      const float4* const from = reinterpret_cast<const float4*>(&sums[group][head][8 * unit]);
      const float4 low = from[0], high = from[1];
      const float eight[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = fmaf(eight[i], own[group], v[i]);
    }
  }
};

// When no group needs a tile any more, all put their sums there; then a thread adds up and stores eight lanes of a head at a time, a loop
// of few instructions.
template <bool kAligned, class Shared>
__device__ __forceinline__ void store(const DecodeArgs& a, Shared& shared, int group, int warp, Softmax<Shared>& state, int32_t token,
                                      int32_t split, bool is_part, int32_t first_head, const Sums<Shared>& sums) {
  static_assert(sizeof(SumsInShared<Shared>) <= sizeof(shared.rows));
  auto& all = *reinterpret_cast<SumsInShared<Shared>*>(shared.rows);
  tell_sums(shared, group, warp, state);
  ptx::barrier_sync(kAllConsumers, Shared::kConsumers);
  all.put(group, warp, sums);
  ptx::barrier_sync(kAllConsumers, Shared::kConsumers);
  float own[Shared::kGroups];
  finish_head(a, shared, token, split, is_part, first_head, own);
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  const int64_t head_stride = is_part ? kValueDim : a.out_head_stride;
  uint16_t* const target = (is_part ? a.part_out + part_index(a, token, split, 0) * kValueDim
                                    : a.out + batch * a.out_batch_stride + query * a.out_query_stride) +
                           first_head * head_stride;
  constexpr int kUnits = kValueDim / 8;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < Shared::kHeads * kUnits; i += Shared::kConsumers) {
    const int head = i / kUnits, unit = i % kUnits;
    float of_head[Shared::kGroups], v[8];
#pragma unroll
    for (int j = 0; j < Shared::kGroups; ++j) of_head[j] = __shfl_sync(~0u, own[j], head);
    if (first_head + head >= a.num_heads) break;
    all.get(head, unit, of_head, v);
    const auto word = [&](int j) { return is_part ? ptx::cvt_f16x2(v[2 * j], v[2 * j + 1]) : ptx::cvt_bf16x2(v[2 * j], v[2 * j + 1]); };
    store_16<kAligned>(target + head * head_stride + 8 * unit, {word(0), word(1), word(2), word(3)});
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
