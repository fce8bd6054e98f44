// From sums of weighted values to the op's outputs, or to a split's part of them.
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

// The first two lanes of four finish a head each: accumulator_row(), and the one eight further on.
__device__ __forceinline__ int finished_row() { return accumulator_row() + 8 * (threadIdx.x % 2); }

// The sink of the head that a thread finishes: asked for before the block meets.
__device__ __forceinline__ float load_sink(const DecodeArgs& a, int32_t first_head) {
  const int head = first_head + finished_row();
  return __uint_as_float(ptx::ld_if(a.sink != nullptr && head < a.num_heads, a.sink + head, 0xFF800000u));
}

// lse and maximum of the block's heads, and shared.alpha = what their sums of values become the output (or the split's part) by.
// The softmax warpgroup; the other consumer waits at kWeightsReady, in turn_sums.
template <class Shared, class StorePart>
__device__ __forceinline__ void finish_softmax(const DecodeArgs& a, Shared& shared, const SoftmaxState& state, float sink, float unshift,
                                               int32_t token, bool is_part, int32_t first_head, const StorePart& store_part) {
  float sums[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums[r] = state.sum[r] + __shfl_xor_sync(~0u, state.sum[r], 1);
    sums[r] += __shfl_xor_sync(~0u, sums[r], 2);
  }
  if (threadIdx.x % 4 > 1) return;
  const bool second = threadIdx.x % 2 == 1;
  const float sum = second ? sums[1] : sums[0], subtracted = second ? state.subtracted[1] : state.subtracted[0],
              maximum = second ? state.maximum[1] : state.maximum[0];
  const int row = finished_row(), head = first_head + row;
  const bool empty = sum == 0.0f;
  const float lse = empty ? -INFINITY : subtracted + __log2f(sum), whole = is_part ? sum : sum + ptx::ex2(sink * kLog2e - subtracted);
  shared.alpha[row] = empty ? 0.0f : (is_part ? 1.0f : unshift) * ptx::rcp(whole);
  if (head >= a.num_heads) return;
  if (is_part) {
    store_part(row, lse, maximum);
  } else {
    store_head(a, token, head, empty, lse, maximum);
  }
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
template <class Shared>
__device__ __forceinline__ uint32_t turned(Shared& shared, int half) {
  return ptx::shared_address(shared.k[0][half * kLeftChunks]);
}
template <class Shared>
__device__ __forceinline__ void turn_sums(Shared& shared, Sums& sums, int half, bool is_part) {
  const int row = accumulator_row(), lane = threadIdx.x % 32, warp_row = threadIdx.x % kWarpgroup / 32 * 16;
  ptx::barrier_sync(kWeightsReady, kConsumerThreads);
  scale_rows(sums, shared.alpha[row], shared.alpha[row + 8]);
  const auto turn = [&](auto&& convert) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const auto pair = [&](int at) { return convert(sums[i / 8][i % 8 * 8 + at], sums[i / 8][i % 8 * 8 + at + 1]); };
      ptx::stmatrix_x4(turned(shared, half) + i / 4 * kChunkBytes + unit_offset(warp_row + lane % 16, i % 4 * 2 + lane / 16), pair(0),
                       pair(2), pair(4), pair(6));
    }
  };
  if (is_part) {
    turn([](float low, float high) { return ptx::cvt_f16x2(low, high); });
  } else {
    turn([](float low, float high) { return ptx::cvt_bf16x2(low, high); });
  }
  __syncwarp();
}
// The rotary lanes among them, of the warp's heads; eight lanes of a head a thread.
template <class Shared>
__device__ __forceinline__ void rotate_turned(Shared& shared) {
  constexpr int kUnits = kRotaryLanes / 8;
  const int lane = threadIdx.x % 32, unit = lane % kUnits, warp_row = threadIdx.x % kWarpgroup / 32 * 16;
  const uint32_t rows = turned(shared, 1) + (kLeftChunks - 1) * kChunkBytes;
#pragma unroll 1
  for (int r = lane / kUnits; r < 16; r += 32 / kUnits) {
    const uint32_t at = rows + unit_offset(warp_row + r, unit);
    ptx::st_shared(at, rotate_back(ptx::ld_shared(at), shared.rotation + 4 * unit));
  }
  __syncwarp();
}
// A loop: code that runs once costs more to fetch than to execute.
template <bool kAligned, class Shared>
__device__ __forceinline__ void store_turned(const DecodeArgs& a, Shared& shared, int half, int32_t token, int32_t split, bool is_part,
                                             int32_t first_head) {
  const int lane = threadIdx.x % 32, first_lane = half * (kValueDim / 2) + 8 * lane, warp_row = threadIdx.x % kWarpgroup / 32 * 16;
  const uint32_t source = turned(shared, half) + lane / 8 * kChunkBytes;
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  const int first = first_head + warp_row, rows = min(16, a.num_heads - first);
  const int64_t stride = is_part ? kValueDim : a.out_head_stride;
  uint16_t* target = (is_part ? a.part_out + part_index(a, token, split, 0) * kValueDim
                              : a.out + batch * a.out_batch_stride + query * a.out_query_stride) +
                     first * stride + first_lane;
#pragma unroll 4
  for (int r = 0; r < rows; ++r, target += stride) {
    const uint4 v = ptx::ld_shared(source + unit_offset(warp_row + r, lane % 8));
    if (kAligned || is_part) {
      ptx::st_global(target, v);
    } else {
      store_16<false>(target, v);
    }
  }
}

}  // namespace strata::cuda::sparse_decode
