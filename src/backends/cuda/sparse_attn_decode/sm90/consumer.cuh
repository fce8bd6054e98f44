// The consumers of the Hopper decode kernel: two warpgroups that compute logits and weights of alternate tiles; one adds up the left 256
// value lanes of all tiles, the other the right 256.
#pragma once

#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/ldmatrix.cuh"
#include "backends/cuda/ptx/wgmma_behind.cuh"
#include "backends/cuda/ptx/wgmma_f16.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/queries.cuh"

namespace strata::cuda::sparse_decode {

// Named barriers; 0 is __syncthreads.
enum Barrier : uint32_t { kQueryReady = 1, kWeightsReady, kOddWeightsReady, kSoftmaxGroup };

// The subtracted maximum may lag behind the true one: weights are then at most 2^8, and most tiles leave the sums as they are.
inline constexpr float kMaxLag = 8.0f;

// The queries in shared memory, by the consumers.
template <class Norm, class Shared>
__device__ __forceinline__ void load_queries(const DecodeArgs& a, Shared& shared, int32_t batch, int32_t query, int32_t first_head,
                                             Norm& norm) {
  const Queries<Shared> queries(a, batch, query, first_head);
  norm.confirm(a, batch * a.num_queries + query);
  queries.store(shared);
  convert_queries(norm, shared);
  ptx::fence_proxy_async();
  ptx::barrier_sync(kQueryReady, kConsumerThreads);
}

// A consumer's sums: two blocks of 128 value lanes, as one product of 256 lanes wants more registers than a thread of 512 starts with.
using Sums = float[2][64];

__device__ __forceinline__ void scale_rows(Sums& sums, float first, float second) {
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] *= i % 4 < 2 ? first : second;
}

__device__ __forceinline__ void hold(Sums& sums) {
  ptx::wgmma_hold(sums[0]);
  ptx::wgmma_hold(sums[1]);
}

// This warp is done with its consumer's half of a stage, which the producers may fill when all four are.
template <class Shared>
__device__ __forceinline__ void release(Shared& shared, uint32_t stage, int half) {
  arrive_warp(shared.empty[stage][half]);
}

// Of a half of a stage, counted from the first in 16 bytes.
template <class Shared>
__device__ __forceinline__ uint32_t place_of(uint32_t stage, int half) {
  return stage * static_cast<uint32_t>(sizeof(Shared::k[0]) / 16) + half * (kLeftChunks * kChunkBytes / 16);
}

template <class Shared>
__device__ __forceinline__ uint64_t values_of(Shared& shared, uint32_t stage, int half) {
  return ptx::behind(ptx::wgmma_descriptor_mn(ptx::shared_address(shared.k), kChunkBytes), place_of<Shared>(stage, half));
}
constexpr int kNextValues = 128;                 // 16 rows on in a descriptor of values: 2048 bytes
constexpr int kNextPart = 2 * kChunkBytes / 16;  // and 128 lanes on

// A tile's weights of a thread of the softmax as fp16 operands.
using Weights = uint32_t[kRowTile / 4];

// sums += weights * this consumer's value lanes, of a tile whose weights are its own. Committed, not waited for.
template <class Shared>
__device__ __forceinline__ void add_values(Shared& shared, uint32_t stage, int half, const Weights& weights, Sums& sums) {
  hold(sums);
  ptx::wgmma_fence();
  const uint64_t v = values_of(shared, stage, half);
#pragma unroll
  for (int i = 0; i < kRowTile / 16; ++i) {
    ptx::wgmma_m64n128k16_rs_mn(sums[0], weights + 4 * i, ptx::behind(v, kNextValues * i));
    ptx::wgmma_m64n128k16_rs_mn(sums[1], weights + 4 * i, ptx::behind(v, kNextValues * i + kNextPart));
  }
  ptx::wgmma_commit();
}
// The same of a tile whose weights are the other's, in shared memory.
template <class Shared>
__device__ __forceinline__ void add_values(Shared& shared, uint32_t stage, int half, Sums& sums) {
  hold(sums);
  ptx::wgmma_fence();
  const uint64_t p = ptx::wgmma_descriptor(ptx::shared_address(shared.p)), v = values_of(shared, stage, half);
#pragma unroll
  for (int i = 0; i < kRowTile / 16; ++i) {  // 32 bytes on
    ptx::wgmma_m64n128k16_mn(sums[0], ptx::behind(p, 2 * i), ptx::behind(v, kNextValues * i));
    ptx::wgmma_m64n128k16_mn(sums[1], ptx::behind(p, 2 * i), ptx::behind(v, kNextValues * i + kNextPart));
  }
  ptx::wgmma_commit();
}

// What a softmax thread knows of its two heads, in base 2 with the scale.
struct SoftmaxState {
  static constexpr float kLeast = -3.402823466e38f;  // finite, as -inf - -inf is not a number
  float subtracted[2] = {kLeast, kLeast};            // what weights are relative to, in both consumers
  float maximum[2] = {-INFINITY, -INFINITY};         // of this consumer's tiles
  float sum[2] = {0, 0};                             // and of this thread's columns of them
};

// Which of this thread's rows are not attended: bit j its first of eight of rows 8 j, bit 8 + j its second.
__device__ __forceinline__ uint32_t missing_rows(const uint32_t* attended) {
  const int shift = threadIdx.x % 4 * 8;
  const uint4 low = *reinterpret_cast<const uint4*>(attended), high = *reinterpret_cast<const uint4*>(attended + 4);
  const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t missing = 0;
  if ((low.x & low.y & low.z & low.w & high.x & high.y & high.z & high.w) != ~0u) {
#pragma unroll
    for (int j = 0; j < 8; ++j) missing |= (~(words[j] >> shift) & 1u) << j | (~(words[j] >> shift) & 16u) << (4 + j);
  }
  return missing;
}
// Logits of rows that are not attended become -inf; the heads' maxima, and what is subtracted. Returns what earlier sums are to be
// multiplied by.
__device__ __forceinline__ float2 raise_maximum(float (&s)[32], float2 factors, uint32_t missing, SoftmaxState& state) {
  if (missing != 0) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if ((missing & (1u << j)) != 0) s[4 * j] = s[4 * j + 2] = -INFINITY;
      if ((missing & (256u << j)) != 0) s[4 * j + 1] = s[4 * j + 3] = -INFINITY;
    }
  }
  const float factor[2] = {factors.x, factors.y};
  float alpha[2], chain[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
  for (int j = 4; j < 32; ++j) chain[j % 4] = fmaxf(chain[j % 4], s[j]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = fmaxf(chain[2 * r], chain[2 * r + 1]);
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    largest *= factor[r];
    state.maximum[r] = fmaxf(state.maximum[r], largest);
    const float raised = largest > state.subtracted[r] + kMaxLag ? largest : state.subtracted[r];
    alpha[r] = ptx::ex2(state.subtracted[r] - raised);
    state.subtracted[r] = raised;
  }
  return {alpha[0], alpha[1]};
}

// So many steps of 16 lanes of a tile's logits take the queries from registers, those that are left: a product of logits reads shared
// memory for as long as it takes, for keys one half of that and for queries the other.
template <class Shared>
using HeldQueries = uint32_t[Shared::kRoom.held_steps > 0 ? Shared::kRoom.held_steps : 1][4];
constexpr int kChunkSteps = kChunkLanes / 16, kHalfSteps = kLeftChunks * kChunkSteps;

// The queries of the last steps of the half that consumer `group` multiplies first.
template <class Shared>
__device__ __forceinline__ void load_held(Shared& shared, int group, HeldQueries<Shared>& held) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
#pragma unroll
  for (int i = 0; i < Shared::kRoom.held_steps; ++i) {
    const int step = kHalfSteps - Shared::kRoom.held_steps + i;
    ptx::ldmatrix_x4(held[i], ptx::shared_address(shared.q[group * kLeftChunks + step / kChunkSteps]) +
                                  unit_offset(row, step % kChunkSteps * 2 + lane / 16));
  }
}

// A half of a tile's logits, queries times keys: first of those lanes that are filled first. The producers' stores become visible to the
// products by the fences here, which have no loads to wait for. Committed, not waited for.
template <class Shared>
__device__ __forceinline__ void add_logits(Shared& shared, uint32_t stage, uint32_t parity, int half, bool is_first,
                                           const HeldQueries<Shared>& held, float (&s)[32]) {
  const auto multiply = [&](int of_half, int chunk, bool accumulate) {
    constexpr int kHeadPlaces = Shared::kHeadBytes / 16, kPlaces = kChunkBytes / 16;
    const uint64_t q = ptx::behind(ptx::wgmma_descriptor(ptx::shared_address(shared.q)), of_half * kLeftChunks * kHeadPlaces);
    const uint64_t k = ptx::behind(ptx::wgmma_descriptor(ptx::shared_address(shared.k)), place_of<Shared>(stage, of_half));
#pragma unroll
    for (int i = 0; i < kChunkSteps; ++i) {  // 32 bytes on
      const int at_held = chunk * kChunkSteps + i - (kHalfSteps - Shared::kRoom.held_steps);
      if (is_first && at_held >= 0) {
        ptx::wgmma_m64n64k16_rs(s, held[at_held], ptx::behind(k, chunk * kPlaces + 2 * i));
        continue;
      }
      ptx::wgmma_m64n64k16(s, ptx::behind(q, chunk * kHeadPlaces + 2 * i), ptx::behind(k, chunk * kPlaces + 2 * i), accumulate || i > 0);
    }
  };
  if (is_first) ptx::wgmma_hold(s);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[stage][half][part]), parity);
    ptx::fence_proxy_async();
    if (part == 0) ptx::wgmma_fence();
    constexpr int kPartChunks = kLeftChunks / kParts;
#pragma unroll
    for (int chunk = part * kPartChunks; chunk < (part + 1) * kPartChunks; ++chunk) {
      multiply(half, chunk, !is_first || chunk > 0);
    }
  }
  if (!is_first) {
#pragma unroll
    for (int chunk = kHalves * kLeftChunks; chunk < kChunks<Shared::kFormat>; ++chunk) multiply(0, chunk, true);
  }
  ptx::wgmma_commit();
}

// Logits to weights [head][cache row], swizzled, with what earlier sums are multiplied by and what they are relative to, for the other
// consumer, which is told by tell_of_weights(). All is stored as it comes, so that the fence there waits for little.
template <class Shared>
__device__ __forceinline__ void give_weights(Shared& shared, const float (&s)[32], float2 factors, float2 alphas, SoftmaxState& state,
                                             Weights& weights) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
  const uint32_t p = ptx::shared_address(shared.p);
  if (threadIdx.x % 4 == 0) {
    shared.reference[accumulator_row()] = {alphas.x, state.subtracted[0]};
    shared.reference[accumulator_row() + 8] = {alphas.y, state.subtracted[1]};
  }
  const float factor[2] = {factors.x, factors.y}, alpha[2] = {alphas.x, alphas.y};
  float sum[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float first = ptx::ex2(fmaf(s[4 * j + 2 * r], factor[r], -state.subtracted[r])),
                  second = ptx::ex2(fmaf(s[4 * j + 2 * r + 1], factor[r], -state.subtracted[r]));
      sum[r] += first + second;
      weights[2 * j + r] = ptx::cvt_f16x2(first, second);
    }
    if (j % 2 == 1) {
      const uint32_t* const w = &weights[2 * j - 2];
      ptx::stmatrix_x4(p + unit_offset(row, j - 1 + lane / 16), w[0], w[1], w[2], w[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) state.sum[r] = state.sum[r] * alpha[r] + sum[r];
}
__device__ __forceinline__ void tell_of_weights(int group) {
  ptx::fence_proxy_async();
  ptx::barrier_arrive(kWeightsReady + group, kConsumerThreads);
}
// Waits for the other consumer's weights and brings this one's sums, if there are any, to what they are relative to.
template <class Shared>
__device__ __forceinline__ void take_weights(Shared& shared, int group, SoftmaxState& state, Sums& sums, bool more) {
  ptx::barrier_sync(kWeightsReady + (group ^ 1), kConsumerThreads);
  const float2 first = shared.reference[accumulator_row()], second = shared.reference[accumulator_row() + 8];
  state.subtracted[0] = first.y, state.subtracted[1] = second.y;
  state.sum[0] *= first.x, state.sum[1] *= second.x;
  if (more && __any_sync(~0u, first.x != 1.0f || second.x != 1.0f)) scale_rows(sums, first.x, second.x);
}

// Consumer `group`: weights of every second tile from tile `group` on, and its half of the value lanes of all tiles. While one consumer is
// in its softmax the other's products are on the tensor cores: for tile t a consumer has half of its logits multiplied, then the values of
// tile t - 1, whose place is free as early as it can be, then the other half of the logits, then the values of t. So the half of a stage
// that is given back first, and filled and multiplied first again, is that of the tile's consumer. There is one buffer of weights, as who
// writes those of t has read those of t - 1. The first tile of a block, and the last if it is the other's, are those without the other
// part.
template <class Shared>
__device__ __forceinline__ void consume(Shared& shared, int group, int32_t tiles, uint32_t phases, float2 factor, SoftmaxState& state,
                                        Sums& sums) {
  const auto stage_of = [&](int32_t tile) { return static_cast<uint32_t>(tile) % kStages; };
  const auto own_values = [&](int32_t tile, const Weights& weights, float2 alpha) {
    if (tile > 0 && __any_sync(~0u, alpha.x != 1.0f || alpha.y != 1.0f)) scale_rows(sums, alpha.x, alpha.y);
    add_values(shared, stage_of(tile), group, weights, sums);
    tell_of_weights(group);  // the fence does not keep these products waiting
    ptx::wgmma_wait<0>();
    hold(sums);
    release(shared, stage_of(tile), group);
  };
  int32_t tile = group;
  HeldQueries<Shared> held;
  load_held(shared, group, held);
#pragma unroll 1
  for (; tile < tiles; tile += 2) {
    float s[32];
    Weights weights;
    const uint32_t parity = phase_of(phases, stage_of(tile), tile);
    add_logits(shared, stage_of(tile), parity, group, true, held, s);
    if (tile > 0) {
      take_weights(shared, group, state, sums, tile > 1);
      add_values(shared, stage_of(tile - 1), group, sums);
    }
    add_logits(shared, stage_of(tile), parity, group ^ 1, false, held, s);
    const uint32_t missing = missing_rows(shared.attended[stage_of(tile)]);
    if (tile > 0) {
      ptx::wgmma_wait<1>();
      hold(sums);
      release(shared, stage_of(tile - 1), group);
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(s);
    const float2 alpha = raise_maximum(s, factor, missing, state);
    give_weights(shared, s, factor, alpha, state, weights);
    own_values(tile, weights, alpha);
  }
  if (tile == tiles && tiles > 0) {
    take_weights(shared, group, state, sums, tile > 1);
    add_values(shared, stage_of(tile - 1), group, sums);
    ptx::wgmma_wait<0>();
    hold(sums);
    release(shared, stage_of(tile - 1), group);
  }
}

}  // namespace strata::cuda::sparse_decode
