// Softmax of the decode kernel for few heads: converts a tile's logits to weights for the values, and to scales of values.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/few_heads_logits.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_combine.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Combines over the eight lanes with the same heads. The result of column g % kCount is in the lanes of g.
template <int kCount, class Reduce>
__device__ __forceinline__ float reduce_lanes(float (&v)[kCount], int g, Reduce&& reduce) {
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const bool upper = (g & half) != 0;
      const float other = __shfl_xor_sync(~0u, upper ? v[i] : v[i + half], 4 * half);
      v[i] = reduce(upper ? v[i + half] : v[i], other);
    }
  }
#pragma unroll
  for (int lanes = kCount; lanes < 8; lanes *= 2) v[0] = reduce(v[0], __shfl_xor_sync(~0u, v[0], 4 * lanes));
  return v[0];
}

// A logits group's state from earlier tiles: sums of weights of the thread's rows and columns, and the lane's head's running maximum, base
// 2. Where registers are too few for logits too, the sums are in shared memory except while in use.
template <class Shared>
struct WeightSums {
  static constexpr int kCount = kColumns<Shared>;
  float of_columns[kCount] = {};
  float running_max = -INFINITY;

  __device__ __forceinline__ void load(const Shared& shared, int group, int thread) {
    if constexpr (Shared::kSumsInShared) {
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i) {
        const float4 four = shared.weight_sums.of_threads[group][i][thread];
        of_columns[4 * i] = four.x, of_columns[4 * i + 1] = four.y, of_columns[4 * i + 2] = four.z, of_columns[4 * i + 3] = four.w;
      }
    }
  }
  __device__ __forceinline__ void store(Shared& shared, int group, int thread) const {
    if constexpr (Shared::kSumsInShared) {
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i) {
        shared.weight_sums.of_threads[group][i][thread] = {of_columns[4 * i], of_columns[4 * i + 1], of_columns[4 * i + 2],
                                                           of_columns[4 * i + 3]};
      }
    }
  }
};

// The head of its columns that a lane handles, the same in all warps.
template <class Shared>
__device__ __forceinline__ int own_head_of(Lane at) {
  return head_of(at.g % kColumns<Shared>, at.q);
}
__device__ __forceinline__ float of_column(float own, int column, int q) { return __shfl_sync(~0u, own, 4 * column + q); }

// Initialises the state as if there had been a tile before the first.
template <class Shared>
__device__ __forceinline__ void prepare_softmax(Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kLogitGroups * Shared::kHeads) shared.running_max[0][thread] = shared.maximum[0][thread] = -INFINITY;
  if (thread < kLogitGroups * 4 * Shared::kHeads) shared.of_warps[0][0][thread] = 0.0f;
  if (thread < kLogitGroups) shared.top_scale[thread] = kSmallestTop;
}

// Converts logits to weights and scales of values, for the values groups. The running maximum passes from tile to tile, from one group to
// the other.
template <class Shared>
__device__ __forceinline__ void softmax_weights(Shared& shared, uint32_t stage, int group, int warp, Lane at, bool is_last,
                                                const RowScales<Shared>& scales, Logits<Shared>& s, WeightSums<Shared>& sums) {
  const int g = at.g, q = at.q, lane = 4 * g + q, own_head = own_head_of<Shared>(at);
  const auto set_row = [&](int r, float v) {
#pragma unroll
    for (int h = 0; h < Shared::kHeadTiles; ++h) s[4 * h + 2 * r] = s[4 * h + 2 * r + 1] = v;
  };
  if (scales.top == kNanByte) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      bool is_nan = false;
      for (int block = 0; block < Shared::kQuantizedBlocks; ++block) is_nan |= scales.exponent(r, block) == kNanByte;
      if (is_nan) set_row(r, NAN);
    }
  }
  // With many heads in a branch, because few tiles have rows that are not attended.
  const uint32_t attended = Shared::kHeads > 16 ? __shfl_sync(~0u, shared.attended[stage][warp], 0) : shared.attended[stage][warp];
  if (Shared::kHeads <= 16 || (attended & 0xFFFFu) != 0xFFFFu) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if ((attended >> g >> (8 * r) & 1u) == 0) set_row(r, -INFINITY);
    }
  }
  float largest_of[kColumns<Shared>];
#pragma unroll
  for (int c = 0; c < kColumns<Shared>; ++c) largest_of[c] = fmaxf(s[c / 2 * 4 + c % 2], s[c / 2 * 4 + c % 2 + 2]);
  const float of_warp = reduce_lanes(largest_of, g, [](float a, float b) { return fmaxf(a, b); });
  if (g < kColumns<Shared>) shared.columns[group][warp][own_head] = of_warp;
  const uint2 first = scales.own[0], second = scales.own[1];
  if (lane == 0) shared.tops[group][warp] = scales.top;
  ptx::barrier_sync(kRunningMaxReady + group, kLogitsThreads);

  int32_t top_scale = shared.top_scale[group ^ 1];
  float running_max = shared.running_max[group ^ 1][own_head];
  uint32_t tops = 0;
  float largest = -INFINITY;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    tops = max(tops, shared.tops[group][w]);
    largest = fmaxf(largest, shared.columns[group][w][own_head]);
  }
  float rescale = 1.0f;
  constexpr int kHeadroom = 2;  // so that it rarely rises
  if (static_cast<int32_t>(tops) > top_scale) {
    const int32_t new_top_scale = static_cast<int32_t>(tops) + kHeadroom;
    rescale = ptx::ex2(static_cast<float>(top_scale - new_top_scale));
    top_scale = new_top_scale;
  }
  largest *= shared.factor[own_head];
  if (largest > running_max + kMaxLag) {
    rescale *= ptx::ex2(running_max - largest);
    running_max = largest;
  }
  float& offset = shared.of_warps[group][warp][own_head];
  // With kSumsInShared it is zero if no logit was finite; the sums are zero then too.
  const float before = Shared::kSumsInShared ? -offset : sums.running_max;
  static_assert(!Shared::kSumsInShared || kColumns<Shared> == 8);  // no other lane writes what this one reads
  if (g < kColumns<Shared>) offset = running_max == -INFINITY ? 0.0f : -running_max;
  if (warp == 0) {
    const bool rescaled = __any_sync(~0u, rescale != 1.0f);
    if (g < kColumns<Shared>) {
      shared.running_max[group][own_head] = running_max, shared.rescale[group][own_head] = rescale;
      shared.maximum[group][own_head] = fmaxf(shared.maximum[group][own_head], largest);
    }
    if (lane == 0) shared.top_scale[group] = top_scale, shared.rescaled[group] = rescaled;
  }
  if (!is_last) ptx::barrier_arrive(kRunningMaxReady + (group ^ 1), kLogitsThreads);

  // scale: V4: an exponent byte; V3.2: a scale's bits.
  const auto value_scale = [&](uint32_t scale) {
    if constexpr (!Shared::kV4) return __uint_as_float(scale) * pow2(kExponentBias - top_scale);
    return __uint_as_float(static_cast<uint32_t>(max(static_cast<int32_t>(scale) - top_scale + kExponentBias, 0)) << 23);
  };
  uint32_t* const pair_scales = &shared.value_scales[group][2 * q][pair_of(warp, g)];
  pair_scales[0] = ptx::cvt_f16x2(value_scale(first.x), value_scale(second.x));
  pair_scales[Shared::kPairPitch] = ptx::cvt_f16x2(value_scale(first.y), value_scale(second.y));

  __syncwarp();
  sums.load(shared, group, 32 * warp + lane);
  if (__any_sync(~0u, running_max != before)) {
    const float own_alpha = running_max > before ? ptx::ex2(before - running_max) : 1.0f;
#pragma unroll
    for (int c = 0; c < kColumns<Shared>; ++c) sums.of_columns[c] *= of_column(own_alpha, c, q);
    sums.running_max = running_max;
  }
  // Heads 2 q and 2 q + 1 of each eight: all eights have the same swizzle.
  const int unit = 2 * warp + g / kSecondPair;
  uint8_t* const base = shared.p[group] + 4 * (g % kSecondPair);
  uint8_t* const pairs[2] = {base + unit_offset(2 * q, unit), base + unit_offset(2 * q + 1, unit)};
#pragma unroll
  for (int h = 0; h < Shared::kHeadTiles; ++h) {
    const int head = head_of(2 * h, q);
    const float2 offsets = *reinterpret_cast<const float2*>(&shared.of_warps[group][warp][head]),
                 factors = *reinterpret_cast<const float2*>(&shared.factor[head]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float offset = i == 0 ? offsets.x : offsets.y, factor = i == 0 ? factors.x : factors.y;
      const float upper = ptx::ex2(fmaf(s[4 * h + i], factor, offset)), lower = ptx::ex2(fmaf(s[4 * h + i + 2], factor, offset));
      *reinterpret_cast<uint32_t*>(pairs[i] + h * unit_offset(8, 0)) = ptx::cvt_f16x2(upper, lower);
      sums.of_columns[2 * h + i] += upper + lower;
    }
  }
  if constexpr (!Shared::kOwnValues) ptx::fence_proxy_async();
  ptx::barrier_arrive(kWeightsReady + group, kWeightsThreads);
  sums.store(shared, group, 32 * warp + lane);
}

// The logits and weights of a tile. is_first: the group's first tile of a token; is_last: the token's last.
template <class Shared>
__device__ __forceinline__ void softmax_tile(Shared& shared, uint64_t queries, RingStage<Shared> stage, int group, int warp, Lane lane,
                                             bool is_first, bool is_last, WeightSums<Shared>& sums) {
  Logits<Shared> s;
  RowScales<Shared> scales;
  stage.wait_until_full(shared);
  logits(shared, queries, stage.index, warp, lane, scales, s);
  if (!is_first) ptx::barrier_sync(kWeightsFree + group, kWeightsThreads);
  if (Shared::kPersistent && threadIdx.x % kWarpgroup == 0) shared.last[group] = is_last;
  softmax_weights(shared, stage.index, group, warp, lane, is_last, scales, s, sums);
}

// Publishes a group's sums of weights, of each warp's rows.
template <class Shared>
__device__ __forceinline__ void publish_sums(Shared& shared, int group, int warp, WeightSums<Shared>& sums) {
  const Lane at;
  const int head = own_head_of<Shared>(at);
  sums.load(shared, group, 32 * warp + 4 * at.g + at.q);
  const float sum = reduce_lanes(sums.of_columns, at.g, [](float a, float b) { return a + b; });
  __syncwarp();
  if (at.g < kColumns<Shared>) shared.of_warps[group][warp][head] = sum;
}

// For head threadIdx.x: computes the factor from sums of values to the output, for the values groups, and writes lse and maximum. By the
// first warp, after both logits groups.
template <class Shared>
__device__ __forceinline__ void finish_head(const DecodeArgs& a, Shared& shared, int last_group, int32_t token, int32_t split,
                                            int32_t first_head, bool is_split) {
  const int head = static_cast<int>(threadIdx.x) % Shared::kHeads;
  const float running_max = shared.running_max[last_group][head], unshift = pow2(shared.top_scale[last_group] - kExponentBias);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kLogitGroups; ++i) {
    const float of_group = shared.running_max[i][head], weight = of_group == -INFINITY ? 0.0f : ptx::ex2(of_group - running_max);
#pragma unroll
    for (int w = 0; w < 4; ++w) sum += weight * shared.of_warps[i][w][head];
  }
  const bool empty = sum == 0.0f;
  shared.normaliser[head] = empty ? 0.0f : is_split ? ptx::rcp(sum) : unshift * ptx::rcp(sum + ptx::ex2(shared.sink[head] - running_max));
  ptx::barrier_arrive(kNormaliserReady, kNormaliserThreads);
  if (threadIdx.x >= Shared::kHeads || first_head + head >= a.num_heads) return;
  const float lse = empty ? -INFINITY : running_max + __log2f(sum), maximum = fmaxf(shared.maximum[0][head], shared.maximum[1][head]);
  if (is_split) {
    if constexpr (Shared::kInCluster) {
      send_end(shared, head, lse, maximum, unshift);
    } else {
      store_split_head(a, split_index(a, token, split, first_head + head), lse, maximum, unshift);
    }
  } else {
    store_head(a, token, first_head + head, empty, lse, maximum);
  }
}

// A logits group of a CTA with one token: every second tile, from tile `group` on.
template <class Shared>
__device__ __forceinline__ void softmax_token(const DecodeArgs& a, Shared& shared, int group, int warp, int32_t tiles, int32_t token,
                                              int32_t split, int32_t first_head, bool is_split) {
  const uint64_t queries = ptx::wgmma_descriptor(ptx::shared_address(shared.q[0]));
  Lane lane;
  WeightSums<Shared> sums;
  sums.store(shared, group, static_cast<int>(threadIdx.x) % kWarpgroup);
  if (group == 1 && tiles > 0) ptx::barrier_arrive(kRunningMaxReady, kLogitsThreads);
#pragma unroll 1
  for (uint32_t tile = group; static_cast<int32_t>(tile) < tiles; tile += kLogitGroups) {
    if constexpr (Shared::kHeads > 16 && !Shared::kSumsInShared) lane.forget();
    softmax_tile(shared, queries, RingStage<Shared>(tile), group, warp, lane, tile < kLogitGroups, static_cast<int32_t>(tile) + 1 == tiles,
                 sums);
  }
  publish_sums(shared, group, warp, sums);
  ptx::barrier_sync(kLogitsDone, kLogitsThreads);
  const int last_group = (tiles + kLogitGroups - 1) % kLogitGroups;
  if (threadIdx.x < 32) finish_head(a, shared, last_group, token, split, first_head, is_split);
  if constexpr (Shared::kInCluster) {
    __syncwarp();
    if (is_split) combine_own_heads(a, shared, token, split, first_head);
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
