// From sums of weighted values to the op's outputs, or to a split's part of them; and the kernel that merges the splits.
#pragma once

#include "backends/cuda/sm90/sparse_decode/consumer.cuh"

namespace strata::cuda::sparse_decode {

__device__ __forceinline__ void clear(float (&sums)[128]) {
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i] = 0.0f;
}

// Results of one head of one token, base 2 with the scale.
__device__ __forceinline__ void store_head(const DecodeArgs& a, int32_t token, int32_t head, bool empty, float lse_log2,
                                           float maximum_log2) {
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  if (a.lse != nullptr) {
    a.lse[batch * a.lse_batch_stride + head * a.lse_head_stride + query * a.lse_query_stride] = empty ? INFINITY : lse_log2 * kLn2;
  }
  if (a.max_logits != nullptr) {
    a.max_logits[batch * a.max_batch_stride + head * a.max_head_stride + query * a.max_query_stride] = maximum_log2 * kLn2;
  }
}

// [token, split, head]
__device__ __forceinline__ int64_t part_index(const DecodeArgs& a, int32_t token, int32_t split, int32_t head) {
  return (static_cast<int64_t>(token) * a.num_splits + split) * a.num_heads + head;
}

// lse and maximum of the block's heads, and shared.alpha = what their sums of values become the output (or the split's part) by.
// The softmax warpgroup; the other consumer waits at kWeightsReady.
template <KvFormat kFormat>
__device__ __forceinline__ void finish_softmax(const DecodeArgs& a, SharedMemory<kFormat>& shared, SoftmaxState& state, float unshift,
                                               int32_t token, int32_t split, int32_t splits, int32_t first_head) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int row = accumulator_row() + 8 * r, head = first_head + row;
    if (threadIdx.x % 4 == 0) {
      const bool empty = sum == 0.0f, exists = head < a.num_heads;
      const float lse = empty ? -INFINITY : state.subtracted[r] + __log2f(sum);
      if (splits == 1) {
        const float sink = a.sink != nullptr && exists ? ptx::ex2(a.sink[head] * kLog2e - state.subtracted[r]) : 0.0f;
        shared.alpha[row] = empty ? 0.0f : unshift / (sum + sink);
        if (exists) store_head(a, token, head, empty, lse, state.maximum[r]);
      } else {
        shared.alpha[row] = empty ? 0.0f : unshift / sum;
        if (exists) {
          const int64_t part = part_index(a, token, split, head);
          a.part_lse[part] = lse;
          a.part_max[part] = state.maximum[r];
        }
      }
    }
  }
  ptx::barrier_sync(kWeightsReady, kConsumerThreads);
}

// The block's heads and 256 value lanes. Splits store fp32 parts straight from the accumulators (four lanes fill a 32-byte sector); results
// are turned in shared memory, where no tile is needed any more, so that a warp writes 512 consecutive bytes.
template <bool kAligned, KvFormat kFormat>
__device__ __forceinline__ void store_sums(const DecodeArgs& a, SharedMemory<kFormat>& shared, float (&sums)[128], int half, int32_t token,
                                           int32_t split, int32_t splits, int32_t first_head) {
  const int row = accumulator_row(), lane = threadIdx.x % 32, first_lane = half * (kValueDim / 2);
  scale_rows(sums, shared.alpha[row], shared.alpha[row + 8]);
  if (splits > 1) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = first_head + row + 8 * r;
      if (head >= a.num_heads) continue;
      float* part = a.part_out + part_index(a, token, split, head) * kValueDim + first_lane + 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < 32; ++j) *reinterpret_cast<float2*>(part + 8 * j) = {sums[4 * j + 2 * r], sums[4 * j + 2 * r + 1]};
    }
    return;
  }
  const uint32_t tile = ptx::shared_address(shared.k[0][half * kLeftChunks]);
  const int warp_row = threadIdx.x % kWarpgroup / 32 * 16;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    ptx::stmatrix_x4(tile + i / 4 * kChunkBytes + unit_offset(warp_row + lane % 16, i % 4 * 2 + lane / 16),
                     ptx::cvt_bf16x2(sums[8 * i], sums[8 * i + 1]), ptx::cvt_bf16x2(sums[8 * i + 2], sums[8 * i + 3]),
                     ptx::cvt_bf16x2(sums[8 * i + 4], sums[8 * i + 5]), ptx::cvt_bf16x2(sums[8 * i + 6], sums[8 * i + 7]));
  }
  __syncwarp();
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  uint16_t* out = a.out + batch * a.out_batch_stride + query * a.out_query_stride;
#pragma unroll 2
  for (int r = 0; r < 16; ++r) {
    const int head = first_head + warp_row + r;
    if (head >= a.num_heads) break;
    const uint4 v = ptx::ld_shared(tile + lane / 8 * kChunkBytes + unit_offset(warp_row + r, lane % 8));
    uint16_t* target = out + head * a.out_head_stride + first_lane + 8 * lane;
    if constexpr (kAligned) {
      *reinterpret_cast<uint4*>(target) = v;
    } else {
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) target[i] = static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)));
    }
  }
}

}  // namespace strata::cuda::sparse_decode
