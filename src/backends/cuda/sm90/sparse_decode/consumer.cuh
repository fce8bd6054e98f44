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
template <bool kAligned, KvFormat kFormat>
__device__ __forceinline__ void load_queries(const DecodeArgs& a, SharedMemory<kFormat>& shared, int32_t batch, int32_t query,
                                             int32_t first_head) {
  constexpr int kUnits = kRowLanes<kFormat> / 8, kLoads = (kUnits + 31) / 32, kTogether = kHeadTile / (kConsumerThreads / 32);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint16_t* q = a.q + batch * a.q_batch_stride + query * a.q_query_stride + first_head * a.q_head_stride;
  const int heads = min(kHeadTile, a.num_heads - first_head);
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
  const auto place = [&](int row, int unit) { return base + unit / 8 * kChunkBytes + unit_offset(row, unit % 8); };
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

__device__ __forceinline__ void scale_rows(float (&sums)[128], float first, float second) {
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    sums[4 * j] *= first, sums[4 * j + 1] *= first;
    sums[4 * j + 2] *= second, sums[4 * j + 3] *= second;
  }
}

// This consumer is done with its half of a stage: the producers of every block of the cluster may fill it.
template <KvFormat kFormat, int kClusterSize>
__device__ __forceinline__ void release(SharedMemory<kFormat>& shared, uint32_t stage, int half, uint32_t rank) {
  if (threadIdx.x % kWarpgroup < kClusterSize) {
    const uint32_t empty = ptx::shared_address(&shared.empty[stage][half]);
    if constexpr (kClusterSize == 1) {
      ptx::mbarrier_arrive(empty);
    } else {
      ptx::mbarrier_arrive_mapped(ptx::map_shared(empty, rank ^ (threadIdx.x % kWarpgroup)));
    }
  }
}

// sums += weights * the half's 256 value lanes. Committed, not waited for.
template <KvFormat kFormat>
__device__ __forceinline__ void add_values(SharedMemory<kFormat>& shared, uint32_t stage, int half, float (&sums)[128]) {
  const uint64_t p = ptx::wgmma_descriptor(ptx::shared_address(shared.p));
  const uint64_t v = ptx::wgmma_descriptor_mn(ptx::shared_address(shared.k[stage][half * kLeftChunks]), kChunkBytes);
#pragma unroll
  for (int i = 0; i < kRowTile / 16; ++i) ptx::wgmma_m64n256k16_mn(sums, p + 2 * i, v + 128 * i);  // 32 and 2048 bytes on
  ptx::wgmma_commit();
}

// What a softmax thread knows of its two heads, in base 2 with the scale.
struct SoftmaxState {
  float subtracted[2] = {-INFINITY, -INFINITY};  // what weights are relative to
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of this thread's columns
};

// Logits of a tile to weights in place; returns what earlier sums are to be multiplied by.
__device__ __forceinline__ float2 softmax_tile(float (&s)[32], float2 factors, const uint32_t* attended, SoftmaxState& state) {
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
    const float offset = state.subtracted[r] == -INFINITY ? 0.0f : -state.subtracted[r];
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      s[4 * j + 2 * r] = ptx::ex2(fmaf(s[4 * j + 2 * r], factor[r], offset));
      s[4 * j + 2 * r + 1] = ptx::ex2(fmaf(s[4 * j + 2 * r + 1], factor[r], offset));
      sum += s[4 * j + 2 * r] + s[4 * j + 2 * r + 1];
    }
    state.sum[r] = state.sum[r] * alpha[r] + sum;
  }
  return {alpha[0], alpha[1]};
}

// Logits of the tile in `stage`: queries times keys, the right chunks first, as they are filled first. Committed, not waited for.
template <KvFormat kFormat>
__device__ __forceinline__ void start_logits(SharedMemory<kFormat>& shared, uint32_t step, float (&s)[32]) {
  const uint32_t stage = step % kStages, parity = step / kStages & 1u;
  ptx::wgmma_hold(s);
#pragma unroll
  for (int half = 1; half >= 0; --half) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[stage][half]), parity);
    ptx::wgmma_fence();
    const int begin = half == 1 ? kLeftChunks : 0, end = half == 1 ? kChunks<kFormat> : kLeftChunks;
#pragma unroll
    for (int chunk = begin; chunk < end; ++chunk) {
      const uint64_t q = ptx::wgmma_descriptor(ptx::shared_address(shared.q[chunk]));
      const uint64_t k = ptx::wgmma_descriptor(ptx::shared_address(shared.k[stage][chunk]));
#pragma unroll
      for (int i = 0; i < kChunkLanes / 16; ++i) {
        ptx::wgmma_m64n64k16(s, q + 2 * i, k + 2 * i, chunk != kLeftChunks || i > 0);  // 32 bytes on
      }
    }
  }
  ptx::wgmma_commit();
}

// Weights as fp16 [head][cache row], swizzled, for both consumers.
__device__ __forceinline__ void store_weights(uint32_t p, const float (&s)[32]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    ptx::stmatrix_x4(p + unit_offset(row, 2 * i + lane / 16), ptx::cvt_f16x2(s[8 * i], s[8 * i + 1]),
                     ptx::cvt_f16x2(s[8 * i + 2], s[8 * i + 3]), ptx::cvt_f16x2(s[8 * i + 4], s[8 * i + 5]),
                     ptx::cvt_f16x2(s[8 * i + 6], s[8 * i + 7]));
  }
}

// Weights and what earlier sums are multiplied by, for both consumers; and this one's sums multiplied.
template <KvFormat kFormat>
__device__ __forceinline__ void hand_over_weights(SharedMemory<kFormat>& shared, const float (&s)[32], float2 alpha, float (&sums)[128]) {
  store_weights(ptx::shared_address(shared.p), s);
  if (threadIdx.x % 4 == 0) {
    shared.alpha[accumulator_row()] = alpha.x;
    shared.alpha[accumulator_row() + 8] = alpha.y;
  }
  ptx::fence_proxy_async();
  ptx::barrier_arrive(kWeightsReady, kConsumerThreads);
  ptx::barrier_sync(kSoftmaxGroup, kWarpgroup);
  if (__any_sync(~0u, alpha.x != 1.0f || alpha.y != 1.0f)) scale_rows(sums, alpha.x, alpha.y);
}

// While the values of tile t are added on the tensor cores the weights of tile t + 1 are computed, whose logits went before.
template <KvFormat kFormat, int kClusterSize>
__device__ __forceinline__ void consume_left(SharedMemory<kFormat>& shared, int32_t tiles, uint32_t& step, uint32_t rank, float2 factor,
                                             SoftmaxState& state, float (&sums)[128]) {
  if (tiles == 0) return;
  float s[32];
  start_logits(shared, step, s);
  ptx::wgmma_wait<0>();
  ptx::wgmma_hold(s);
  float2 alpha = softmax_tile(s, factor, shared.attended[step % kStages], state);
  for (int32_t t = 1; t < tiles; ++t, ++step) {
    hand_over_weights(shared, s, alpha, sums);
    start_logits(shared, step + 1, s);
    ptx::wgmma_hold(sums);
    ptx::wgmma_fence();
    add_values(shared, step % kStages, 0, sums);
    ptx::wgmma_wait<1>();
    ptx::wgmma_hold(s);
    alpha = softmax_tile(s, factor, shared.attended[(step + 1) % kStages], state);
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(sums);
    release<kFormat, kClusterSize>(shared, step % kStages, 0, rank);
    ptx::barrier_sync(kWeightsFree, kConsumerThreads);
  }
  hand_over_weights(shared, s, alpha, sums);
  ptx::wgmma_hold(sums);
  ptx::wgmma_fence();
  add_values(shared, step % kStages, 0, sums);
  ptx::wgmma_wait<0>();
  ptx::wgmma_hold(sums);
  release<kFormat, kClusterSize>(shared, step % kStages, 0, rank);
  ++step;
}

template <KvFormat kFormat, int kClusterSize>
__device__ __forceinline__ void consume_right(SharedMemory<kFormat>& shared, int32_t tiles, uint32_t& step, uint32_t rank,
                                              float (&sums)[128]) {
  for (int32_t t = 0; t < tiles; ++t, ++step) {
    const uint32_t stage = step % kStages, parity = step / kStages & 1u;
    ptx::barrier_sync(kWeightsReady, kConsumerThreads);
    const float first = shared.alpha[accumulator_row()], second = shared.alpha[accumulator_row() + 8];
    if (__any_sync(~0u, first != 1.0f || second != 1.0f)) scale_rows(sums, first, second);
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[stage][1]), parity);
    ptx::wgmma_hold(sums);
    ptx::wgmma_fence();
    add_values(shared, stage, 1, sums);
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(sums);
    release<kFormat, kClusterSize>(shared, stage, 1, rank);
    if (t + 1 < tiles) ptx::barrier_arrive(kWeightsFree, kConsumerThreads);
  }
}

}  // namespace strata::cuda::sparse_decode
