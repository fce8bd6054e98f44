// The consumers of the Hopper decode kernel: two warpgroups that compute logits and weights of alternate tiles; one adds up the left 256
// value lanes of all tiles, the other the right 256.
#pragma once

#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/wgmma_f16.cuh"
#include "backends/cuda/sm90/sparse_decode/queries.cuh"

namespace strata::cuda::sparse_decode {

// Named barriers; 0 is __syncthreads.
enum Barrier : uint32_t { kQueryReady = 1, kWeightsReady, kOddWeightsReady, kSoftmaxGroup };

// The subtracted maximum may lag behind the true one: weights are then at most 2^8, and most tiles leave the sums as they are.
inline constexpr float kMaxLag = 8.0f;

// The queries in shared memory, by the consumers.
template <bool kAligned, class Shared>
__device__ __forceinline__ void load_queries(const DecodeArgs& a, Shared& shared, int32_t batch, int32_t query, int32_t first_head) {
  Queries<kAligned, Shared>(a, batch, query, first_head).store(shared);
  convert_queries(shared);
  ptx::fence_proxy_async();
  ptx::barrier_sync(kQueryReady, kConsumerThreads);
}

// Where a consumer thread's accumulators belong: heads row and row + 8 of the block's 64.
__device__ __forceinline__ int accumulator_row() { return threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4; }

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
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.empty[stage][half]));
}

template <class Shared>
__device__ __forceinline__ uint64_t values_of(Shared& shared, uint32_t stage, int half) {
  return ptx::wgmma_descriptor_mn(ptx::shared_address(shared.k[stage][half * kLeftChunks]), kChunkBytes);
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
    ptx::wgmma_m64n128k16_rs_mn(sums[0], weights + 4 * i, v + kNextValues * i);
    ptx::wgmma_m64n128k16_rs_mn(sums[1], weights + 4 * i, v + kNextValues * i + kNextPart);
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
    ptx::wgmma_m64n128k16_mn(sums[0], p + 2 * i, v + kNextValues * i);
    ptx::wgmma_m64n128k16_mn(sums[1], p + 2 * i, v + kNextValues * i + kNextPart);
  }
  ptx::wgmma_commit();
}

// What a softmax thread knows of its two heads, in base 2 with the scale.
struct SoftmaxState {
  float subtracted[2] = {-INFINITY, -INFINITY};  // what weights are relative to, in both consumers
  float maximum[2] = {-INFINITY, -INFINITY};     // of this consumer's tiles
  float sum[2] = {0, 0};                         // and of this thread's columns of them
};

// Logits of rows that are not attended become -inf; the heads' maxima, and what is subtracted. Returns what earlier sums are to be
// multiplied by.
__device__ __forceinline__ float2 raise_maximum(float (&s)[32], float2 factors, const uint32_t* attended, SoftmaxState& state) {
  const int pair = threadIdx.x % 4;
  const uint4 low = *reinterpret_cast<const uint4*>(attended), high = *reinterpret_cast<const uint4*>(attended + 4);
  const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if ((low.x & low.y & low.z & low.w & high.x & high.y & high.z & high.w) != ~0u) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t bits = words[j] >> (8 * pair);
      if ((bits & 1u) == 0) s[4 * j] = s[4 * j + 2] = -INFINITY;
      if ((bits & 16u) == 0) s[4 * j + 1] = s[4 * j + 3] = -INFINITY;
    }
  }
  const float factor[2] = {factors.x, factors.y};
  float alpha[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int j = 1; j < 8; ++j) largest = fmaxf(largest, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    largest *= factor[r];
    state.maximum[r] = fmaxf(state.maximum[r], largest);
    alpha[r] = 1.0f;
    if (largest > state.subtracted[r] + kMaxLag) {
      alpha[r] = ptx::ex2(state.subtracted[r] - largest);
      state.subtracted[r] = largest;
    }
  }
  return {alpha[0], alpha[1]};
}
// Logits to weights.
__device__ __forceinline__ void weigh(float (&s)[32], float2 factors, float2 alphas, SoftmaxState& state, Weights& weights) {
  const float factor[2] = {factors.x, factors.y}, alpha[2] = {alphas.x, alphas.y};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float offset = state.subtracted[r] == -INFINITY ? 0.0f : -state.subtracted[r];
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float first = ptx::ex2(fmaf(s[4 * j + 2 * r], factor[r], offset)),
                  second = ptx::ex2(fmaf(s[4 * j + 2 * r + 1], factor[r], offset));
      sum += first + second;
      weights[2 * j + r] = ptx::cvt_f16x2(first, second);
    }
    state.sum[r] = state.sum[r] * alpha[r] + sum;
  }
}

// A half of a tile's logits, queries times keys: first of those lanes that are filled first. The producers' stores become visible to the
// products by the fences here, which have no loads to wait for. Committed, not waited for.
template <class Shared>
__device__ __forceinline__ void add_logits(Shared& shared, uint32_t step, int half, bool is_first, float (&s)[32]) {
  const uint32_t stage = step % kStages, parity = step / kStages & 1u;
  const auto multiply = [&](int chunk, bool accumulate) {
    const uint64_t q = ptx::wgmma_descriptor(ptx::shared_address(shared.q[chunk]));
    const uint64_t k = ptx::wgmma_descriptor(ptx::shared_address(shared.k[stage][chunk]));
#pragma unroll
    for (int i = 0; i < kChunkLanes / 16; ++i) ptx::wgmma_m64n64k16(s, q + 2 * i, k + 2 * i, accumulate || i > 0);  // 32 bytes on
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
      multiply(half * kLeftChunks + chunk, !is_first || chunk > 0);
    }
  }
  if (!is_first) {
#pragma unroll
    for (int chunk = kHalves * kLeftChunks; chunk < kChunks<Shared::kFormat>; ++chunk) multiply(chunk, true);
  }
  ptx::wgmma_commit();
}

// Weights [head][cache row], swizzled, with what earlier sums are multiplied by and what they are relative to, for the other consumer.
template <class Shared>
__device__ __forceinline__ void give_weights(Shared& shared, int group, const Weights& weights, float2 alpha, const SoftmaxState& state) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
  const uint32_t p = ptx::shared_address(shared.p);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    ptx::stmatrix_x4(p + unit_offset(row, 2 * i + lane / 16), weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3]);
  }
  if (threadIdx.x % 4 == 0) {
    shared.reference[accumulator_row()] = {alpha.x, state.subtracted[0]};
    shared.reference[accumulator_row() + 8] = {alpha.y, state.subtracted[1]};
  }
  ptx::fence_proxy_async();
  ptx::barrier_arrive(kWeightsReady + group, kConsumerThreads);
}
// Waits for the other consumer's weights and brings this one's sums to what they are relative to.
template <class Shared>
__device__ __forceinline__ void take_weights(Shared& shared, int group, SoftmaxState& state, Sums& sums) {
  ptx::barrier_sync(kWeightsReady + (group ^ 1), kConsumerThreads);
  const float2 first = shared.reference[accumulator_row()], second = shared.reference[accumulator_row() + 8];
  state.subtracted[0] = first.y, state.subtracted[1] = second.y;
  state.sum[0] *= first.x, state.sum[1] *= second.x;
  if (__any_sync(~0u, first.x != 1.0f || second.x != 1.0f)) scale_rows(sums, first.x, second.x);
}

// Consumer `group`: weights of every second tile from tile `group` on, and its half of the value lanes of all tiles. While one consumer is
// in its softmax the other's products are on the tensor cores: for tile t a consumer has half of its logits multiplied, then the values of
// tile t - 1, whose place is free as early as it can be, then the other half of the logits, then the values of t. So the half of a stage
// that is given back first, and filled and multiplied first again, is that of the tile's consumer. There is one buffer of weights, as who
// writes those of t has read those of t - 1. The first tile of a block, and the last if it is the other's, are those without the other
// part. `logits_done()` follows those of each tile of this consumer.
template <class Shared, class LogitsDone>
__device__ __forceinline__ void consume(Shared& shared, int group, int32_t tiles, uint32_t step, float2 factor, SoftmaxState& state,
                                        Sums& sums, const LogitsDone& logits_done) {
  const auto stage_of = [&](int32_t tile) { return (step + tile) % kStages; };
  const auto own_values = [&](int32_t tile, const Weights& weights, float2 alpha) {
    if (__any_sync(~0u, alpha.x != 1.0f || alpha.y != 1.0f)) scale_rows(sums, alpha.x, alpha.y);
    add_values(shared, stage_of(tile), group, weights, sums);
    ptx::wgmma_wait<0>();
    hold(sums);
    release(shared, stage_of(tile), group);
  };
  int32_t tile = group;
#pragma unroll 1
  for (; tile < tiles; tile += 2) {
    float s[32];
    Weights weights;
    add_logits(shared, step + tile, group, true, s);
    if (tile > 0) {
      take_weights(shared, group, state, sums);
      add_values(shared, stage_of(tile - 1), group, sums);
    }
    add_logits(shared, step + tile, group ^ 1, false, s);
    if (tile > 0) {
      ptx::wgmma_wait<1>();
      hold(sums);
      release(shared, stage_of(tile - 1), group);
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(s);
    logits_done();
    const float2 alpha = raise_maximum(s, factor, shared.attended[stage_of(tile)], state);
    weigh(s, factor, alpha, state, weights);
    give_weights(shared, group, weights, alpha, state);
    own_values(tile, weights, alpha);
  }
  if (tile == tiles && tiles > 0) {
    take_weights(shared, group, state, sums);
    add_values(shared, stage_of(tile - 1), group, sums);
    ptx::wgmma_wait<0>();
    hold(sums);
    release(shared, stage_of(tile - 1), group);
  }
}

// Brings the second consumer's softmax to the first; the weights' place is free. All consumer threads.
template <class Shared>
__device__ __forceinline__ void merge_softmax(Shared& shared, int group, SoftmaxState& state) {
  float4& other = reinterpret_cast<float4*>(shared.p)[threadIdx.x % kWarpgroup];
  if (group == 1) other = {state.sum[0], state.sum[1], state.maximum[0], state.maximum[1]};
  ptx::barrier_sync(kQueryReady, kConsumerThreads);
  if (group == 1) return;
  state.sum[0] += other.x, state.sum[1] += other.y;
  state.maximum[0] = fmaxf(state.maximum[0], other.z), state.maximum[1] = fmaxf(state.maximum[1], other.w);
}

}  // namespace strata::cuda::sparse_decode
