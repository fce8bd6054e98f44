// The consumers of the Hopper decode kernel: one warpgroup computes logits and weights and the left 256 value lanes, the other the right
// 256 lanes with the same weights.
#pragma once

#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/wgmma_f16.cuh"
#include "backends/cuda/sm90/sparse_decode/producer.cuh"

namespace strata::cuda::sparse_decode {

// Named barriers; 0 is __syncthreads.
enum Barrier : uint32_t { kQueryReady = 1, kWeightsReady, kWeightsFree, kSoftmaxGroup };

// The subtracted maximum may lag behind the true one: weights are then at most 2^8, and most tiles leave the sums as they are.
inline constexpr float kMaxLag = 8.0f;

// Queries of this block's heads as fp16 of which the largest of a head is in [2^14, 2^15): nothing overflows, whatever q is. Heads that
// do not exist are zero. All consumer threads.
template <bool kAligned, class Shared>
__device__ __forceinline__ void load_queries(const DecodeArgs& a, Shared& shared, int32_t batch, int32_t query, int32_t first_head) {
  constexpr int kUnits = kRowLanes<Shared::kFormat> / 8, kLoads = (kUnits + 31) / 32, kTogether = Shared::kHeads / (kConsumerThreads / 32);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint16_t* q = a.q + batch * a.q_batch_stride + query * a.q_query_stride + first_head * a.q_head_stride;
  const int heads = min(Shared::kHeads, a.num_heads - first_head);
  const int first_row = warp * kTogether;
  uint4 v[kTogether][kLoads];
#pragma unroll
  for (int r = 0; r < kTogether; ++r) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int unit = lane + 32 * i;
      v[r][i] = load_16<kAligned>(first_row + r < heads && unit < kUnits, q + (first_row + r) * a.q_head_stride + 8 * unit);
    }
  }
  const uint32_t base = ptx::shared_address(shared.q);
  const auto place = [&](int row, int unit) { return base + unit / 8 * Shared::kHeadBytes + unit_offset(row, unit % 8); };
  // By way of shared memory, so that the conversion is a loop: code that runs once costs more to fetch than to execute.
#pragma unroll
  for (int r = 0; r < kTogether; ++r) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (lane + 32 * i < kUnits) ptx::st_shared(place(first_row + r, lane + 32 * i), v[r][i]);
    }
  }
#pragma unroll 1
  for (int row = first_row; row < first_row + kTogether; ++row) {
    uint4 raw[kLoads];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      raw[i] = lane + 32 * i < kUnits ? ptx::ld_shared(place(row, lane + 32 * i)) : uint4{};
      largest = max(largest, max_bf16_bits(raw[i]));
    }
    largest = __reduce_max_sync(~0u, largest);
    const int exponent = max(static_cast<int>(largest >> 7) - 127 - 14, -100);
    const float factor = pow2(-exponent);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (lane + 32 * i < kUnits) ptx::st_shared(place(row, lane + 32 * i), bf16_to_f16(raw[i], factor));
    }
    if (lane == 0) shared.q_scale[row] = pow2(exponent);
  }
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

// This consumer is done with its half of a stage: the producers may fill it.
template <class Shared>
__device__ __forceinline__ void release(Shared& shared, uint32_t stage, int half) {
  if (threadIdx.x % kWarpgroup == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.empty[stage][half]));
}

template <class Shared>
__device__ __forceinline__ uint64_t values_of(Shared& shared, uint32_t stage, int half) {
  return ptx::wgmma_descriptor_mn(ptx::shared_address(shared.k[stage][half * kLeftChunks]), kChunkBytes);
}
constexpr int kNextValues = 128;                 // 16 rows on in a descriptor of values: 2048 bytes
constexpr int kNextPart = 2 * kChunkBytes / 16;  // and 128 lanes on

// A tile's weights of a thread of the softmax as fp16 operands.
using Weights = uint32_t[kRowTile / 4];

// sums += weights * the left value lanes. Committed, not waited for.
template <class Shared>
__device__ __forceinline__ void add_left_values(Shared& shared, uint32_t stage, const Weights& weights, Sums& sums) {
  const uint64_t v = values_of(shared, stage, 0);
#pragma unroll
  for (int i = 0; i < kRowTile / 16; ++i) {
    ptx::wgmma_m64n128k16_rs_mn(sums[0], weights + 4 * i, v + kNextValues * i);
    ptx::wgmma_m64n128k16_rs_mn(sums[1], weights + 4 * i, v + kNextValues * i + kNextPart);
  }
  ptx::wgmma_commit();
}
// The same of the right, with the weights in shared memory.
template <class Shared>
__device__ __forceinline__ void add_right_values(Shared& shared, uint32_t stage, Sums& sums) {
  const uint64_t p = ptx::wgmma_descriptor(ptx::shared_address(shared.p[0])), v = values_of(shared, stage, 1);
#pragma unroll
  for (int i = 0; i < kRowTile / 16; ++i) {  // 32 bytes on
    ptx::wgmma_m64n128k16_mn(sums[0], p + 2 * i, v + kNextValues * i);
    ptx::wgmma_m64n128k16_mn(sums[1], p + 2 * i, v + kNextValues * i + kNextPart);
  }
  ptx::wgmma_commit();
}

// What a softmax thread knows of its two heads, in base 2 with the scale.
struct SoftmaxState {
  float subtracted[2] = {-INFINITY, -INFINITY};  // what weights are relative to
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of this thread's columns
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

// Half of the logits of a tile: queries times keys. The right half is first, as it is filled first.
template <int kHalf, class Shared>
__device__ __forceinline__ void start_logits(Shared& shared, uint32_t step, float (&s)[32]) {
  const uint32_t stage = step % kStages, parity = step / kStages & 1u;
  ptx::mbarrier_wait(ptx::shared_address(&shared.full[stage][kHalf]), parity);
  ptx::wgmma_hold(s);
  ptx::wgmma_fence();
  constexpr int kBegin = kHalf == 1 ? kLeftChunks : 0, kEnd = kHalf == 1 ? kChunks<Shared::kFormat> : kLeftChunks;
#pragma unroll
  for (int chunk = kBegin; chunk < kEnd; ++chunk) {
    const uint64_t q = ptx::wgmma_descriptor(ptx::shared_address(shared.q[chunk]));
    const uint64_t k = ptx::wgmma_descriptor(ptx::shared_address(shared.k[stage][chunk]));
#pragma unroll
    for (int i = 0; i < kChunkLanes / 16; ++i) {
      ptx::wgmma_m64n64k16(s, q + 2 * i, k + 2 * i, chunk != kLeftChunks || i > 0);  // 32 bytes on
    }
  }
}

// Weights [head][cache row], swizzled, and what earlier sums are multiplied by, for the other consumer; and this one's sums multiplied.
template <class Shared>
__device__ __forceinline__ void store_weights(Shared& shared, const Weights& weights, float2 alpha, Sums& sums) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
  const uint32_t p = ptx::shared_address(shared.p[0]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    ptx::stmatrix_x4(p + unit_offset(row, 2 * i + lane / 16), weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3]);
  }
  if (threadIdx.x % 4 == 0) {
    shared.alpha[accumulator_row()] = alpha.x;
    shared.alpha[accumulator_row() + 8] = alpha.y;
  }
  if (__any_sync(~0u, alpha.x != 1.0f || alpha.y != 1.0f)) scale_rows(sums, alpha.x, alpha.y);
}

// Logits, softmax and left values. The logits of tile t + 1 are on the tensor cores before the left values of tile t, which its softmax
// then overlaps. The fence that shows the weights to the other consumer's products takes hundreds of cycles while shared memory is
// busy, so it stands behind the start of the logits.
template <class Shared>
__device__ __forceinline__ void consume_left(Shared& shared, int32_t tiles, uint32_t& step, float2 factor, SoftmaxState& state,
                                             Sums& sums) {
  if (tiles == 0) return;
  float s[32];
  Weights weights;
  start_logits<1>(shared, step, s);
  start_logits<0>(shared, step, s);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::wgmma_hold(s);
  float2 alpha = raise_maximum(s, factor, shared.attended[step % kStages], state);
  weigh(s, factor, alpha, state, weights);
  for (int32_t t = 1; t < tiles; ++t, ++step) {
    if (t > 1) ptx::barrier_sync(kWeightsFree, kConsumerThreads);
    store_weights(shared, weights, alpha, sums);
    start_logits<1>(shared, step + 1, s);
    ptx::fence_proxy_async();
    ptx::barrier_arrive(kWeightsReady, kConsumerThreads);
    start_logits<0>(shared, step + 1, s);
    ptx::wgmma_commit();
    hold(sums);
    ptx::wgmma_hold(weights);
    ptx::wgmma_fence();
    add_left_values(shared, step % kStages, weights, sums);
    ptx::wgmma_wait<1>();
    ptx::wgmma_hold(s);
    alpha = raise_maximum(s, factor, shared.attended[(step + 1) % kStages], state);
    ptx::wgmma_wait<0>();
    hold(sums);
    ptx::wgmma_hold(weights);
    release(shared, step % kStages, 0);
    weigh(s, factor, alpha, state, weights);
  }
  if (tiles > 1) ptx::barrier_sync(kWeightsFree, kConsumerThreads);
  store_weights(shared, weights, alpha, sums);
  ptx::fence_proxy_async();
  ptx::barrier_arrive(kWeightsReady, kConsumerThreads);
  hold(sums);
  ptx::wgmma_hold(weights);
  ptx::wgmma_fence();
  add_left_values(shared, step % kStages, weights, sums);
  ptx::wgmma_wait<0>();
  hold(sums);
  release(shared, step % kStages, 0);
  ++step;
}

template <class Shared>
__device__ __forceinline__ void consume_right(Shared& shared, int32_t tiles, uint32_t& step, Sums& sums) {
  for (int32_t t = 0; t < tiles; ++t, ++step) {
    const uint32_t stage = step % kStages, parity = step / kStages & 1u;
    ptx::barrier_sync(kWeightsReady, kConsumerThreads);
    const float first = shared.alpha[accumulator_row()], second = shared.alpha[accumulator_row() + 8];
    if (__any_sync(~0u, first != 1.0f || second != 1.0f)) scale_rows(sums, first, second);
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[stage][1]), parity);
    hold(sums);
    ptx::wgmma_fence();
    add_right_values(shared, stage, sums);
    ptx::wgmma_wait<0>();
    hold(sums);
    release(shared, stage, 1);
    if (t + 1 < tiles) ptx::barrier_arrive(kWeightsFree, kConsumerThreads);
  }
}

}  // namespace strata::cuda::sparse_decode
