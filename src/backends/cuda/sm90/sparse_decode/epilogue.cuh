// From sums of weighted values to the op's outputs, or to a split's part of them; and the kernel that merges the splits.
#pragma once

#include "backends/cuda/sm90/sparse_decode/consumer.cuh"

namespace strata::cuda::sparse_decode {

__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] = 0.0f;
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

// What the merge needs of a head of a split besides its part.
__device__ __forceinline__ void store_part_head(const DecodeArgs& a, int64_t part, float lse_log2, float maximum_log2, float unshift) {
  a.part_lse[part] = lse_log2;
  a.part_max[part] = maximum_log2;
  a.part_unshift[part] = unshift;
}

// lse and maximum of the block's heads, and shared.alpha = what their sums of values become the output (or the split's part) by.
// The softmax warpgroup; the other consumer waits at kWeightsReady.
template <class Shared>
__device__ __forceinline__ void finish_softmax(const DecodeArgs& a, Shared& shared, SoftmaxState& state, float unshift, int32_t token,
                                               int32_t split, int32_t splits, int32_t first_head) {
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
        shared.alpha[row] = empty ? 0.0f : 1.0f / sum;
        if (exists) store_part_head(a, part_index(a, token, split, head), lse, state.maximum[r], unshift);
      }
    }
  }
  ptx::barrier_sync(kWeightsReady, kConsumerThreads);
}

// Eight bf16.
template <bool kAligned>
__device__ __forceinline__ void store_16(uint16_t* target, uint4 v) {
  if constexpr (kAligned) {
    ptx::st_global(target, v);
  } else {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) target[i] = static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)));
  }
}

// The block's heads and 256 value lanes: bf16 results, or a split's part as fp16 multiples of its unshift (no larger than its keys, which
// fit). They are turned in shared memory, where no tile is needed any more, so that a warp writes 512 consecutive bytes.
template <bool kAligned, class Shared>
__device__ __forceinline__ void store_sums(const DecodeArgs& a, Shared& shared, Sums& sums, int half, int32_t token, int32_t split,
                                           int32_t splits, int32_t first_head) {
  const int row = accumulator_row(), lane = threadIdx.x % 32, first_lane = half * (kValueDim / 2) + 8 * lane;
  const int warp_row = threadIdx.x % kWarpgroup / 32 * 16;
  const bool is_part = splits > 1;
  scale_rows(sums, shared.alpha[row], shared.alpha[row + 8]);
  const uint32_t tile = ptx::shared_address(shared.k[0][half * kLeftChunks]);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const auto pair = [&](int at) {
      const float low = sums[i / 8][i % 8 * 8 + at], high = sums[i / 8][i % 8 * 8 + at + 1];
      return is_part ? ptx::cvt_f16x2(low, high) : ptx::cvt_bf16x2(low, high);
    };
    ptx::stmatrix_x4(tile + i / 4 * kChunkBytes + unit_offset(warp_row + lane % 16, i % 4 * 2 + lane / 16), pair(0), pair(2), pair(4),
                     pair(6));
  }
  __syncwarp();
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  uint16_t* out = a.out + batch * a.out_batch_stride + query * a.out_query_stride + first_lane;
  uint16_t* part = a.part_out + part_index(a, token, split, 0) * kValueDim + first_lane;
#pragma unroll 2
  for (int r = 0; r < 16; ++r) {
    const int head = first_head + warp_row + r;
    if (head >= a.num_heads) break;
    const uint4 v = ptx::ld_shared(tile + lane / 8 * kChunkBytes + unit_offset(warp_row + r, lane % 8));
    if (is_part) {
      ptx::st_global(part + head * kValueDim, v);
    } else {
      store_16<kAligned>(out + head * a.out_head_stride, v);
    }
  }
}

}  // namespace strata::cuda::sparse_decode
