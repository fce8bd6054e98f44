// The consumers of the decode kernel for few heads: rows are M of wgmma, heads are N. Two warpgroups take tiles in turn, each with logits,
// softmax and sums of its own, merged at the end.
#pragma once

#include "backends/cuda/sm90/sparse_decode/consumer.cuh"
#include "backends/cuda/sm90/sparse_decode/epilogue.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Named barriers behind those of consumer.cuh: of all consumers, of one group.
constexpr uint32_t kAllConsumers = kWeightsReady, kGroupBarrier = kSoftmaxGroup;

// The heads of a thread: head_of(0 .. kColumns - 1).
template <class Shared>
inline constexpr int kColumns = Shared::kHeads / 4;
__device__ __forceinline__ int head_of(int column) { return column / 2 * 8 + threadIdx.x % 4 * 2 + column % 2; }

// Base 2 with the scale.
template <class Shared>
struct State {
  float subtracted[kColumns<Shared>];  // what weights are relative to, the same in all threads of a group
  float maximum[kColumns<Shared>];
  float sum[kColumns<Shared>];  // of this thread's rows
};

// sums[c][4 j + 2 r + i] is value lane 64 c + 16 * warp + lane / 4 + 8 r of head_of(2 j + i).
template <class Shared>
using Sums = float[kValueDim / kChunkLanes][Shared::kHeads / 2];

// The largest over the eight lanes with the same heads.
__device__ __forceinline__ float rows_max(float v) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, lanes));
  return v;
}

// s[4 j + 2 r + i]: row 16 * warp + lane / 4 + 8 r of the tile, head_of(2 j + i).
// Returns the words of the warp's rows that are attended.
template <class Shared>
__device__ __forceinline__ uint2 logits(Shared& shared, uint32_t stage, uint32_t parity, float (&s)[Shared::kHeads / 2]) {
#pragma unroll
  for (int half = 1; half >= 0; --half) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[stage][half]), parity);
    ptx::wgmma_hold(s);
    ptx::wgmma_fence();
    const int begin = half == 1 ? kLeftChunks : 0, end = half == 1 ? kChunks<Shared::kFormat> : kLeftChunks;
#pragma unroll
    for (int chunk = begin; chunk < end; ++chunk) {
      const uint64_t k = ptx::wgmma_descriptor(ptx::shared_address(shared.k[stage][chunk]));
      const uint64_t q = ptx::wgmma_descriptor(ptx::shared_address(shared.q[chunk]));
#pragma unroll
      for (int i = 0; i < kChunkLanes / 16; ++i) ptx::wgmma_m64k16<false>(s, k + 2 * i, q + 2 * i, chunk != kLeftChunks || i > 0);
    }
  }
  ptx::wgmma_commit();
  const uint2 attended = *reinterpret_cast<const uint2*>(&shared.attended[stage][threadIdx.x % kWarpgroup / 32 * 2]);
  ptx::wgmma_wait<0>();
  ptx::wgmma_hold(s);
  return attended;
}

// Logits to weights in place; a head's factor to base 2 is in shared.alpha. `alpha`: what earlier sums are to be multiplied by.
template <class Shared>
__device__ __forceinline__ void softmax(Shared& shared, int group, uint2 attended, float (&s)[Shared::kHeads / 2], State<Shared>& state,
                                        float (&alpha)[kColumns<Shared>]) {
  const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (((r == 0 ? attended.x : attended.y) >> (lane / 4 * 4) & 1u) == 0) {
#pragma unroll
      for (int c = 0; c < kColumns<Shared>; ++c) s[c / 2 * 4 + 2 * r + c % 2] = -INFINITY;
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns<Shared>; ++c) {
    const float largest = rows_max(fmaxf(s[c / 2 * 4 + c % 2], s[c / 2 * 4 + 2 + c % 2]));
    if (lane < 4) shared.columns[group][warp][head_of(c)] = largest;
  }
  ptx::barrier_sync(kGroupBarrier + group, kWarpgroup);
#pragma unroll
  for (int c = 0; c < kColumns<Shared>; ++c) {
    const float factor = shared.alpha[head_of(c)];
    float largest = shared.columns[group][0][head_of(c)];
#pragma unroll
    for (int w = 1; w < 4; ++w) largest = fmaxf(largest, shared.columns[group][w][head_of(c)]);
    largest *= factor;
    state.maximum[c] = fmaxf(state.maximum[c], largest);
    alpha[c] = 1.0f;
    if (largest > state.subtracted[c] + kMaxLag) {
      alpha[c] = ptx::ex2(state.subtracted[c] - largest);
      state.subtracted[c] = largest;
    }
    const float offset = state.subtracted[c] == -INFINITY ? 0.0f : -state.subtracted[c];
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float& v = s[c / 2 * 4 + 2 * r + c % 2];
      v = ptx::ex2(fmaf(v, factor, offset));
      sum += v;
    }
    state.sum[c] = state.sum[c] * alpha[c] + sum;
  }
}

// Weights as fp16 [head][cache row], swizzled.
template <class Shared>
__device__ __forceinline__ void store_weights(Shared& shared, int group, const float (&s)[Shared::kHeads / 2]) {
  const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
  const uint32_t p = ptx::shared_address(shared.p[group]);
#pragma unroll
  for (int i = 0; i < Shared::kHeads / 16; ++i) {
    const auto pair = [&](int at) { return ptx::cvt_f16x2(s[8 * i + at], s[8 * i + at + 1]); };
    ptx::stmatrix_x4_trans(p + unit_offset(16 * i + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2), pair(0), pair(2), pair(4), pair(6));
  }
  ptx::fence_proxy_async();
  ptx::barrier_sync(kGroupBarrier + group, kWarpgroup);
}

template <class Shared>
__device__ __forceinline__ void scale(Sums<Shared>& sums, const float (&by)[kColumns<Shared>]) {
#pragma unroll
  for (int chunk = 0; chunk < kValueDim / kChunkLanes; ++chunk) {
#pragma unroll
    for (int i = 0; i < Shared::kHeads / 2; ++i) sums[chunk][i] *= by[i / 4 * 2 + i % 2];
  }
}

// Every second of the tiles whose first is number `step`, from tile `group` on.
template <class Shared>
__device__ __forceinline__ void consume(Shared& shared, int group, int32_t tiles, uint32_t step, State<Shared>& state, Sums<Shared>& sums) {
#pragma unroll 1
  for (int32_t tile = group; tile < tiles; tile += 2) {
    const uint32_t stage = (step + tile) % kStages, parity = (step + tile) / kStages & 1u;
    float s[Shared::kHeads / 2], alpha[kColumns<Shared>];
    const uint2 attended = logits(shared, stage, parity, s);
    softmax(shared, group, attended, s, state, alpha);
    store_weights(shared, group, s);
    bool same = true;
#pragma unroll
    for (int c = 0; c < kColumns<Shared>; ++c) same &= alpha[c] == 1.0f;
    if (!__all_sync(~0u, same)) scale<Shared>(sums, alpha);
#pragma unroll
    for (int chunk = 0; chunk < kValueDim / kChunkLanes; ++chunk) ptx::wgmma_hold(sums[chunk]);
    ptx::wgmma_fence();
    const uint64_t p = ptx::wgmma_descriptor(ptx::shared_address(shared.p[group]));
#pragma unroll
    for (int half = 1; half >= 0; --half) {  // the right one is filled first, so it is given back first
#pragma unroll
      for (int chunk = half * kLeftChunks; chunk < (half + 1) * kLeftChunks; ++chunk) {
        const uint64_t v = ptx::wgmma_descriptor_mn(ptx::shared_address(shared.k[stage][chunk]), kChunkBytes);
#pragma unroll
        for (int i = 0; i < kRowTile / 16; ++i) ptx::wgmma_m64k16<true>(sums[chunk], v + 128 * i, p + 2 * i, true);
      }
      ptx::wgmma_commit();
    }
    ptx::wgmma_wait<1>();
    release(shared, stage, 1);
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int chunk = 0; chunk < kValueDim / kChunkLanes; ++chunk) ptx::wgmma_hold(sums[chunk]);
    release(shared, stage, 0);
  }
}

// Merges the groups' softmax and turns this group's sums into its part of the output. All consumers.
template <class Shared>
__device__ __forceinline__ void finish(const DecodeArgs& a, Shared& shared, int group, const State<Shared>& state, float unshift,
                                       int32_t token, int32_t split, bool is_part, Sums<Shared>& sums) {
  const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < kColumns<Shared>; ++c) {
    float sum = state.sum[c];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (lane < 4) {
      shared.columns[group][warp][head_of(c)] = sum;
      if (warp == 0) shared.ends[group][head_of(c)] = {state.subtracted[c], state.maximum[c]};
    }
  }
  ptx::barrier_sync(kAllConsumers, kConsumerThreads);
  float own[kColumns<Shared>];
#pragma unroll
  for (int c = 0; c < kColumns<Shared>; ++c) {
    const int head = head_of(c);
    const bool exists = head < a.num_heads;
    const float2 first = shared.ends[0][head], second = shared.ends[1][head];
    const float subtracted = fmaxf(first.x, second.x), maximum = fmaxf(first.y, second.y);
    float sum = 0.0f, weight = 0.0f;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const float of_group = g == 0 ? first.x : second.x, w = of_group == -INFINITY ? 0.0f : ptx::ex2(of_group - subtracted);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += w * shared.columns[g][i][head];
      if (g == group) weight = w;
    }
    const bool empty = sum == 0.0f, store = group == 0 && warp == 0 && lane < 4 && exists;
    const float lse = empty ? -INFINITY : subtracted + __log2f(sum);
    if (!is_part) {
      const float sink = a.sink != nullptr && exists ? ptx::ex2(a.sink[head] * kLog2e - subtracted) : 0.0f;
      own[c] = empty ? 0.0f : weight * unshift / (sum + sink);
      if (store) store_head(a, token, head, empty, lse, maximum);
    } else {
      own[c] = empty ? 0.0f : weight / sum;
      if (store) store_part_head(a, part_index(a, token, split, head), lse, maximum, unshift);
    }
  }
  scale<Shared>(sums, own);
}

// Adds the groups' outputs and stores them: each group the half of the value lanes that has its number. By way of shared memory, where no
// tile is needed any more, as fp32 [head][lane], padded so that a warp's stores meet every bank once.
template <bool kAligned, class Shared>
__device__ __forceinline__ void store(const DecodeArgs& a, Shared& shared, int group, int32_t token, int32_t split, bool is_part,
                                      Sums<Shared>& sums) {
  constexpr int kPitch = kValueDim + 4, kHalfChunks = kLeftChunks, kHalfLanes = kValueDim / 2;
  static_assert(sizeof(shared.k) >= sizeof(float) * Shared::kHeads * kPitch);
  float* out = reinterpret_cast<float*>(shared.k);
  const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
  const auto at = [&](int chunk, int i) -> float& {
    return out[head_of(i / 4 * 2 + i % 2) * kPitch + chunk * kChunkLanes + 16 * warp + lane / 4 + i / 2 % 2 * 8];
  };
#pragma unroll
  for (int chunk = 0; chunk < 2 * kHalfChunks; ++chunk) {
    if (chunk / kHalfChunks == group) continue;
#pragma unroll
    for (int i = 0; i < Shared::kHeads / 2; ++i) at(chunk, i) = sums[chunk][i];
  }
  ptx::barrier_sync(kAllConsumers, kConsumerThreads);
#pragma unroll
  for (int chunk = 0; chunk < 2 * kHalfChunks; ++chunk) {
    if (chunk / kHalfChunks != group) continue;
#pragma unroll
    for (int i = 0; i < Shared::kHeads / 2; ++i) at(chunk, i) += sums[chunk][i];
  }
  ptx::barrier_sync(kGroupBarrier + group, kWarpgroup);
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  const int first_lane = group * kHalfLanes + 8 * lane;
#pragma unroll 1
  for (int head = warp; head < min(Shared::kHeads, a.num_heads); head += 4) {
    const float4 low = *reinterpret_cast<const float4*>(&out[head * kPitch + first_lane]),
                 high = *reinterpret_cast<const float4*>(&out[head * kPitch + first_lane + 4]);
    if (is_part) {
      ptx::st_global(
          a.part_out + part_index(a, token, split, head) * kValueDim + first_lane,
          {ptx::cvt_f16x2(low.x, low.y), ptx::cvt_f16x2(low.z, low.w), ptx::cvt_f16x2(high.x, high.y), ptx::cvt_f16x2(high.z, high.w)});
    } else {
      store_16<kAligned>(
          a.out + batch * a.out_batch_stride + query * a.out_query_stride + head * a.out_head_stride + first_lane,
          {ptx::cvt_bf16x2(low.x, low.y), ptx::cvt_bf16x2(low.z, low.w), ptx::cvt_bf16x2(high.x, high.y), ptx::cvt_bf16x2(high.z, high.w)});
    }
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
