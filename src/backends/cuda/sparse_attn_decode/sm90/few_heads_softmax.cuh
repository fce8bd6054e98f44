// Softmax of the decode kernel for few heads: a tile's logits become weights for the values, and scales of values.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/few_heads_logits.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_merge.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Over the eight lanes with the same heads: of column g % kCount in the lanes of g.
template <int kCount, class Combine>
__device__ __forceinline__ float combine_lanes(float (&v)[kCount], int g, Combine&& combine) {
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const bool upper = (g & half) != 0;
      const float other = __shfl_xor_sync(~0u, upper ? v[i] : v[i + half], 4 * half);
      v[i] = combine(upper ? v[i + half] : v[i], other);
    }
  }
#pragma unroll
  for (int lanes = kCount; lanes < 8; lanes *= 2) v[0] = combine(v[0], __shfl_xor_sync(~0u, v[0], 4 * lanes));
  return v[0];
}

// What a group of logits knows of the tiles before: sums of weights of the thread's rows and columns, and what they are relative to, base
// 2, of the lane's head. Where registers are too few for logits beside them they are in shared memory but while they are used.
template <class Shared>
struct WeightSums {
  static constexpr int kCount = kColumns<Shared>;
  float of_columns[kCount] = {};
  float subtracted = -INFINITY;

  __device__ __forceinline__ void load(const Shared& shared, int group, int thread) {
    if constexpr (Shared::kSumsAside) {
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i) {
        const float4 four = shared.weight_sums.of_threads[group][i][thread];
        of_columns[4 * i] = four.x, of_columns[4 * i + 1] = four.y, of_columns[4 * i + 2] = four.z, of_columns[4 * i + 3] = four.w;
      }
    }
  }
  __device__ __forceinline__ void store(Shared& shared, int group, int thread) const {
    if constexpr (Shared::kSumsAside) {
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i) {
        shared.weight_sums.of_threads[group][i][thread] = {of_columns[4 * i], of_columns[4 * i + 1], of_columns[4 * i + 2],
                                                           of_columns[4 * i + 3]};
      }
    }
  }
};

// The head that a lane has of those of its columns, in all warps.
template <class Shared>
__device__ __forceinline__ int own_head_of(Lane at) {
  return head_of(at.g % kColumns<Shared>, at.q);
}
__device__ __forceinline__ float of_column(float own, int column, int q) { return __shfl_sync(~0u, own, 4 * column + q); }

// As if there had been a tile before the first.
template <class Shared>
__device__ __forceinline__ void prepare_softmax(Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kLogitGroups * Shared::kHeads) shared.subtracted[0][thread] = shared.maximum[0][thread] = -INFINITY;
  if (thread < kLogitGroups * 4 * Shared::kHeads) shared.of_warps[0][0][thread] = 0.0f;
  if (thread < kLogitGroups) shared.top_scale[thread] = kSmallestTop;
}

// Logits to weights and scales of values, for the groups of values. What weights are relative to goes from tile to tile, from one group
// to the other.
template <class Shared>
__device__ __forceinline__ void weigh(Shared& shared, uint32_t stage, int group, int warp, Lane at, bool is_last,
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
      for (int block = 0; block < Shared::kCodeBlocks; ++block) is_nan |= scales.exponent(r, block) == kNanByte;
      if (is_nan) set_row(r, NAN);
    }
  }
  // With many heads in a branch, as there are few tiles with rows that are not attended.
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
  const float of_warp = combine_lanes(largest_of, g, [](float a, float b) { return fmaxf(a, b); });
  if (g < kColumns<Shared>) shared.columns[group][warp][own_head] = of_warp;
  const uint2 first = scales.own[0], second = scales.own[1];
  if (lane == 0) shared.tops[group][warp] = scales.top;
  ptx::barrier_sync(kTurn + group, kTurnThreads);

  int32_t top_scale = shared.top_scale[group ^ 1];
  float subtracted = shared.subtracted[group ^ 1][own_head];
  uint32_t tops = 0;
  float largest = -INFINITY;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    tops = max(tops, shared.tops[group][w]);
    largest = fmaxf(largest, shared.columns[group][w][own_head]);
  }
  float lift = 1.0f;
  constexpr int kHeadroom = 2;  // so that it rises seldom
  if (static_cast<int32_t>(tops) > top_scale) {
    const int32_t raised = static_cast<int32_t>(tops) + kHeadroom;
    lift = ptx::ex2(static_cast<float>(top_scale - raised));
    top_scale = raised;
  }
  largest *= shared.factor[own_head];
  if (largest > subtracted + kMaxLag) {
    lift *= ptx::ex2(subtracted - largest);
    subtracted = largest;
  }
  float& offset = shared.of_warps[group][warp][own_head];
  // Aside it is zero if no logit was finite; then sums are zero too.
  const float before = Shared::kSumsAside ? -offset : sums.subtracted;
  static_assert(!Shared::kSumsAside || kColumns<Shared> == 8);  // no other lane writes what this one reads
  if (g < kColumns<Shared>) offset = subtracted == -INFINITY ? 0.0f : -subtracted;
  if (warp == 0) {
    const bool lifted = __any_sync(~0u, lift != 1.0f);
    if (g < kColumns<Shared>) {
      shared.subtracted[group][own_head] = subtracted, shared.lift[group][own_head] = lift;
      shared.maximum[group][own_head] = fmaxf(shared.maximum[group][own_head], largest);
    }
    if (lane == 0) shared.top_scale[group] = top_scale, shared.lifted[group] = lifted;
  }
  if (!is_last) ptx::barrier_arrive(kTurn + (group ^ 1), kTurnThreads);

  // V4: of an exponent byte; V3.2: of a scale's bits.
  const auto value_scale = [&](uint32_t scale) {
    if constexpr (!Shared::kV4) return __uint_as_float(scale) * pow2(kExponentBias - top_scale);
    return __uint_as_float(static_cast<uint32_t>(max(static_cast<int32_t>(scale) - top_scale + kExponentBias, 0)) << 23);
  };
  uint32_t* const pair_scales = &shared.value_scales[group][2 * q][pair_of(warp, g)];
  pair_scales[0] = ptx::cvt_f16x2(value_scale(first.x), value_scale(second.x));
  pair_scales[Shared::kPairPitch] = ptx::cvt_f16x2(value_scale(first.y), value_scale(second.y));

  __syncwarp();
  sums.load(shared, group, 32 * warp + lane);
  if (__any_sync(~0u, subtracted != before)) {
    const float own_alpha = subtracted > before ? ptx::ex2(before - subtracted) : 1.0f;
#pragma unroll
    for (int c = 0; c < kColumns<Shared>; ++c) sums.of_columns[c] *= of_column(own_alpha, c, q);
    sums.subtracted = subtracted;
  }
  // Heads 2 q and 2 q + 1 of each eight: the swizzle is the same in all eights.
  const int unit = 2 * warp + g / kSecondPair;
  uint8_t* const place = shared.p[group] + 4 * (g % kSecondPair);
  uint8_t* const pairs[2] = {place + unit_offset(2 * q, unit), place + unit_offset(2 * q + 1, unit)};
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

// The logits and weights of a tile, of which it is the group's first of a token or not, and the token's last or not.
template <class Shared>
__device__ __forceinline__ void weigh_tile(Shared& shared, uint64_t queries, Place<Shared> place, int group, int warp, Lane lane,
                                           bool is_first, bool is_last, WeightSums<Shared>& sums) {
  Logits<Shared> s;
  RowScales<Shared> scales;
  place.wait_until_full(shared);
  logits(shared, queries, place.stage, warp, lane, scales, s);
  if (!is_first) ptx::barrier_sync(kWeightsFree + group, kWeightsThreads);
  if (Shared::kInTurn && threadIdx.x % kWarpgroup == 0) shared.last[group] = is_last;
  weigh(shared, place.stage, group, warp, lane, is_last, scales, s, sums);
}

// A group's sums of weights, of each warp's rows.
template <class Shared>
__device__ __forceinline__ void tell_sums(Shared& shared, int group, int warp, WeightSums<Shared>& sums) {
  const Lane at;
  const int head = own_head_of<Shared>(at);
  sums.load(shared, group, 32 * warp + 4 * at.g + at.q);
  const float sum = combine_lanes(sums.of_columns, at.g, [](float a, float b) { return a + b; });
  __syncwarp();
  if (at.g < kColumns<Shared>) shared.of_warps[group][warp][head] = sum;
}

// Of head threadIdx.x: what sums of values become the output by, for the groups of values, and its results. The first warp, behind both
// groups of logits.
template <class Shared>
__device__ __forceinline__ void finish_head(const DecodeArgs& a, Shared& shared, int last_group, int32_t token, int32_t split,
                                            int32_t first_head, bool is_part) {
  const int head = static_cast<int>(threadIdx.x) % Shared::kHeads;
  const float subtracted = shared.subtracted[last_group][head], unshift = pow2(shared.top_scale[last_group] - kExponentBias);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kLogitGroups; ++i) {
    const float of_group = shared.subtracted[i][head], weight = of_group == -INFINITY ? 0.0f : ptx::ex2(of_group - subtracted);
#pragma unroll
    for (int w = 0; w < 4; ++w) sum += weight * shared.of_warps[i][w][head];
  }
  const bool empty = sum == 0.0f;
  shared.normaliser[head] = empty ? 0.0f : is_part ? ptx::rcp(sum) : unshift * ptx::rcp(sum + ptx::ex2(shared.sink[head] - subtracted));
  ptx::barrier_arrive(kNormaliserReady, kNormaliserThreads);
  if (threadIdx.x >= Shared::kHeads || first_head + head >= a.num_heads) return;
  const float lse = empty ? -INFINITY : subtracted + __log2f(sum), maximum = fmaxf(shared.maximum[0][head], shared.maximum[1][head]);
  if (is_part) {
    if constexpr (Shared::kInCluster) {
      send_end(shared, head, lse, maximum, unshift);
    } else {
      store_part_head(a, part_index(a, token, split, first_head + head), lse, maximum, unshift);
    }
  } else {
    store_head(a, token, first_head + head, empty, lse, maximum);
  }
}

// A group of logits of a block of one token: every second of its tiles, from tile `group` on.
template <class Shared>
__device__ __forceinline__ void weigh_token(const DecodeArgs& a, Shared& shared, int group, int warp, int32_t tiles, int32_t token,
                                            int32_t split, int32_t first_head, bool is_part) {
  const uint64_t queries = ptx::wgmma_descriptor(ptx::shared_address(shared.q[0]));
  Lane lane;
  WeightSums<Shared> sums;
  sums.store(shared, group, static_cast<int>(threadIdx.x) % kWarpgroup);
  if (group == 1 && tiles > 0) ptx::barrier_arrive(kTurn, kTurnThreads);
#pragma unroll 1
  for (uint32_t tile = group; static_cast<int32_t>(tile) < tiles; tile += kLogitGroups) {
    if constexpr (Shared::kHeads > 16 && !Shared::kSumsAside) lane.forget();
    weigh_tile(shared, queries, Place<Shared>(tile), group, warp, lane, tile < kLogitGroups, static_cast<int32_t>(tile) + 1 == tiles, sums);
  }
  tell_sums(shared, group, warp, sums);
  ptx::barrier_sync(kLogitsDone, kTurnThreads);
  const int last_group = (tiles + kLogitGroups - 1) % kLogitGroups;
  if (threadIdx.x < 32) finish_head(a, shared, last_group, token, split, first_head, is_part);
  if constexpr (Shared::kInCluster) {
    __syncwarp();
    if (is_part) merge_own_heads(a, shared, token, split, first_head);
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
