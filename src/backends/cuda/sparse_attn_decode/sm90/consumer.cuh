// The consumers of the Hopper decode kernel: two warpgroups that compute logits and softmax weights of alternate tiles. One accumulates
// value dimensions 0..255 of all tiles, the other 256..511.
#pragma once

#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/ldmatrix.cuh"
#include "backends/cuda/ptx/wgmma_offset.cuh"
#include "backends/cuda/ptx/wgmma_f16.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/queries.cuh"

namespace strata::cuda::sparse_decode {

// Named barriers; 0 is __syncthreads.
enum Barrier : uint32_t { kQueryReady = 1, kWeightsReady, kOddWeightsReady, kSoftmaxGroup };

// The running maximum may be up to kMaxLag below the true one: weights are then at most 2^8, and most tiles need no rescaling.
inline constexpr float kMaxLag = 8.0f;

// The consumers load the queries, convert them and store them to shared memory.
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

// A consumer's sums: two groups of 128 value dimensions. One product of 256 would need more registers than a thread of 512 starts with.
using Sums = float[2][64];

__device__ __forceinline__ void scale_rows(Sums& sums, float first, float second) {
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] *= i % 4 < 2 ? first : second;
}

__device__ __forceinline__ void hold(Sums& sums) {
  ptx::wgmma_hold(sums[0]);
  ptx::wgmma_hold(sums[1]);
}

// Signals that this warp has finished its consumer's half of a stage. Producers may refill the half when all four warps have.
template <class Shared>
__device__ __forceinline__ void release(Shared& shared, uint32_t stage, int half) {
  arrive_warp(shared.empty[stage][half]);
}

// Offset of a stage's half in shared memory, in units of 16 bytes.
template <class Shared>
__device__ __forceinline__ uint32_t stage_offset(uint32_t stage, int half) {
  return stage * static_cast<uint32_t>(sizeof(Shared::k[0]) / 16) + half * (kLeftChunks * kChunkBytes / 16);
}

template <class Shared>
__device__ __forceinline__ uint64_t values_of(Shared& shared, uint32_t stage, int half) {
  return ptx::offset(ptx::wgmma_descriptor_mn(ptx::shared_address(shared.k), kChunkBytes), stage_offset<Shared>(stage, half));
}
constexpr int kNextRows = 128;                   // 16 rows further in a descriptor of values: 2048 bytes
constexpr int kNextDims = 2 * kChunkBytes / 16;  // 128 dimensions further

// A softmax thread's weights of a tile, as fp16 operands.
using Weights = uint32_t[kRowTile / 4];

// sums += weights * this consumer's value dimensions, for a tile whose weights this consumer computed. Commits, does not wait.
template <class Shared>
__device__ __forceinline__ void add_values(Shared& shared, uint32_t stage, int half, const Weights& weights, Sums& sums) {
  hold(sums);
  ptx::wgmma_fence();
  const uint64_t v = values_of(shared, stage, half);
#pragma unroll
  for (int i = 0; i < kRowTile / 16; ++i) {
    ptx::wgmma_m64n128k16_rs_mn(sums[0], weights + 4 * i, ptx::offset(v, kNextRows * i));
    ptx::wgmma_m64n128k16_rs_mn(sums[1], weights + 4 * i, ptx::offset(v, kNextRows * i + kNextDims));
  }
  ptx::wgmma_commit();
}
// The same for a tile whose weights the other consumer computed, in shared memory.
template <class Shared>
__device__ __forceinline__ void add_values(Shared& shared, uint32_t stage, int half, Sums& sums) {
  hold(sums);
  ptx::wgmma_fence();
  const uint64_t p = ptx::wgmma_descriptor(ptx::shared_address(shared.p)), v = values_of(shared, stage, half);
#pragma unroll
  for (int i = 0; i < kRowTile / 16; ++i) {  // advances by 32 bytes
    ptx::wgmma_m64n128k16_mn(sums[0], ptx::offset(p, 2 * i), ptx::offset(v, kNextRows * i));
    ptx::wgmma_m64n128k16_mn(sums[1], ptx::offset(p, 2 * i), ptx::offset(v, kNextRows * i + kNextDims));
  }
  ptx::wgmma_commit();
}

// A softmax thread's state of its two heads, in base 2 including the scale.
struct SoftmaxState {
  static constexpr float kLowest = -3.402823466e38f;  // finite, because -inf - -inf is NaN
  float running_max[2] = {kLowest, kLowest};          // running maximum that the weights use, in both consumers
  float maximum[2] = {-INFINITY, -INFINITY};          // of this consumer's tiles
  float sum[2] = {0, 0};                              // of this thread's columns of these tiles
};

// Which of this thread's rows are not attended: bit j for row 8 j + the first of its two, bit 8 + j for the second.
__device__ __forceinline__ uint32_t unattended_rows(const uint32_t* attended) {
  const int shift = threadIdx.x % 4 * 8;
  const uint4 low = *reinterpret_cast<const uint4*>(attended), high = *reinterpret_cast<const uint4*>(attended + 4);
  const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t unattended = 0;
  if ((low.x & low.y & low.z & low.w & high.x & high.y & high.z & high.w) != ~0u) {
#pragma unroll
    for (int j = 0; j < 8; ++j) unattended |= (~(words[j] >> shift) & 1u) << j | (~(words[j] >> shift) & 16u) << (4 + j);
  }
  return unattended;
}
// Sets logits of rows that are not attended to -inf and updates the heads' maxima and the running maximum. Returns the factors that rescale
// earlier sums.
__device__ __forceinline__ float2 update_running_max(float (&s)[32], float2 factors, uint32_t unattended, SoftmaxState& state) {
  if (unattended != 0) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if ((unattended & (1u << j)) != 0) s[4 * j] = s[4 * j + 2] = -INFINITY;
      if ((unattended & (256u << j)) != 0) s[4 * j + 1] = s[4 * j + 3] = -INFINITY;
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
    const float new_max = largest > state.running_max[r] + kMaxLag ? largest : state.running_max[r];
    alpha[r] = ptx::ex2(state.running_max[r] - new_max);
    state.running_max[r] = new_max;
  }
  return {alpha[0], alpha[1]};
}

// The last held_steps steps of 16 dimensions of a tile's logits take the queries from registers. A product of logits otherwise reads shared
// memory all the time: half of it for keys and half for queries.
template <class Shared>
using HeldQueries = uint32_t[Shared::kRoom.held_steps > 0 ? Shared::kRoom.held_steps : 1][4];
constexpr int kChunkSteps = kChunkDims / 16, kHalfSteps = kLeftChunks * kChunkSteps;

// Loads the queries of the last steps of the half that consumer `group` multiplies first.
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

// Half of a tile's logits, queries times keys, starting with the dimensions that are filled first. The fences here make the producers'
// stores visible to the products, and have no loads to wait for. Commits, does not wait.
template <class Shared>
__device__ __forceinline__ void add_logits(Shared& shared, uint32_t stage, uint32_t parity, int half, bool is_first,
                                           const HeldQueries<Shared>& held, float (&s)[32]) {
  const auto multiply = [&](int of_half, int chunk, bool accumulate) {
    constexpr int kHeadChunkOffset = Shared::kHeadBytes / 16, kChunkOffset = kChunkBytes / 16;
    const uint64_t q = ptx::offset(ptx::wgmma_descriptor(ptx::shared_address(shared.q)), of_half * kLeftChunks * kHeadChunkOffset);
    const uint64_t k = ptx::offset(ptx::wgmma_descriptor(ptx::shared_address(shared.k)), stage_offset<Shared>(stage, of_half));
#pragma unroll
    for (int i = 0; i < kChunkSteps; ++i) {  // advances by 32 bytes
      const int at_held = chunk * kChunkSteps + i - (kHalfSteps - Shared::kRoom.held_steps);
      if (is_first && at_held >= 0) {
        ptx::wgmma_m64n64k16_rs(s, held[at_held], ptx::offset(k, chunk * kChunkOffset + 2 * i));
        continue;
      }
      ptx::wgmma_m64n64k16(s, ptx::offset(q, chunk * kHeadChunkOffset + 2 * i), ptx::offset(k, chunk * kChunkOffset + 2 * i),
                           accumulate || i > 0);
    }
  };
  if (is_first) ptx::wgmma_hold(s);
#pragma unroll
  for (int fill = 0; fill < kFillsPerHalf; ++fill) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[stage][half][fill]), parity);
    ptx::fence_proxy_async();
    if (fill == 0) ptx::wgmma_fence();
    constexpr int kFillChunks = kLeftChunks / kFillsPerHalf;
#pragma unroll
    for (int chunk = fill * kFillChunks; chunk < (fill + 1) * kFillChunks; ++chunk) {
      multiply(half, chunk, !is_first || chunk > 0);
    }
  }
  if (!is_first) {
#pragma unroll
    for (int chunk = kHalves * kLeftChunks; chunk < kChunks<Shared::kFormat>; ++chunk) multiply(0, chunk, true);
  }
  ptx::wgmma_commit();
}

// Writes the softmax weights [head][cache row], swizzled, for the other consumer, which signal_weights() signals, with the rescale factors
// and the running maximum. All is stored as it is computed, so that the fence there waits for little.
template <class Shared>
__device__ __forceinline__ void publish_weights(Shared& shared, const float (&s)[32], float2 factors, float2 alphas, SoftmaxState& state,
                                                Weights& weights) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
  const uint32_t p = ptx::shared_address(shared.p);
  if (threadIdx.x % 4 == 0) {
    shared.reference[accumulator_row()] = {alphas.x, state.running_max[0]};
    shared.reference[accumulator_row() + 8] = {alphas.y, state.running_max[1]};
  }
  const float factor[2] = {factors.x, factors.y}, alpha[2] = {alphas.x, alphas.y};
  float sum[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float first = ptx::ex2(fmaf(s[4 * j + 2 * r], factor[r], -state.running_max[r])),
                  second = ptx::ex2(fmaf(s[4 * j + 2 * r + 1], factor[r], -state.running_max[r]));
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
__device__ __forceinline__ void signal_weights(int group) {
  ptx::fence_proxy_async();
  ptx::barrier_arrive(kWeightsReady + group, kConsumerThreads);
}
// Waits for the other consumer's weights. Rescales this consumer's sums, if there are any, to the other's running maximum.
template <class Shared>
__device__ __forceinline__ void acquire_weights(Shared& shared, int group, SoftmaxState& state, Sums& sums, bool more) {
  ptx::barrier_sync(kWeightsReady + (group ^ 1), kConsumerThreads);
  const float2 first = shared.reference[accumulator_row()], second = shared.reference[accumulator_row() + 8];
  state.running_max[0] = first.y, state.running_max[1] = second.y;
  state.sum[0] *= first.x, state.sum[1] *= second.x;
  if (more && __any_sync(~0u, first.x != 1.0f || second.x != 1.0f)) scale_rows(sums, first.x, second.x);
}

// Consumer `group`: weights of every second tile from tile `group` on, and its half of the value dimensions of all tiles. One consumer's
// products use the tensor cores while the other is in its softmax. For tile t a consumer issues half of its logits, then the values of tile
// t - 1, so that their stage is free early, then the other half of the logits, then the values of t. So the half that is released, refilled
// and multiplied first is that of the tile's consumer. One buffer of weights is enough: the writer of tile t's weights has read those of t
// - 1. The first tile of a CTA has no preceding values; a last tile of the other consumer has no own logits.
template <class Shared>
__device__ __forceinline__ void consume(Shared& shared, int group, int32_t tiles, uint32_t phases, float2 factor, SoftmaxState& state,
                                        Sums& sums) {
  const auto stage_of = [&](int32_t tile) { return static_cast<uint32_t>(tile) % kStages; };
  const auto own_values = [&](int32_t tile, const Weights& weights, float2 alpha) {
    if (tile > 0 && __any_sync(~0u, alpha.x != 1.0f || alpha.y != 1.0f)) scale_rows(sums, alpha.x, alpha.y);
    add_values(shared, stage_of(tile), group, weights, sums);
    signal_weights(group);  // the fence does not delay these products
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
      acquire_weights(shared, group, state, sums, tile > 1);
      add_values(shared, stage_of(tile - 1), group, sums);
    }
    add_logits(shared, stage_of(tile), parity, group ^ 1, false, held, s);
    const uint32_t unattended = unattended_rows(shared.attended[stage_of(tile)]);
    if (tile > 0) {
      ptx::wgmma_wait<1>();
      hold(sums);
      release(shared, stage_of(tile - 1), group);
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(s);
    const float2 alpha = update_running_max(s, factor, unattended, state);
    publish_weights(shared, s, factor, alpha, state, weights);
    own_values(tile, weights, alpha);
  }
  if (tile == tiles && tiles > 0) {
    acquire_weights(shared, group, state, sums, tile > 1);
    add_values(shared, stage_of(tile - 1), group, sums);
    ptx::wgmma_wait<0>();
    hold(sums);
    release(shared, stage_of(tile - 1), group);
  }
}

}  // namespace strata::cuda::sparse_decode
