// Converts sums of weighted values to the op's outputs, or to the result of a split.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/consumer.cuh"

namespace strata::cuda::sparse_decode {

__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] = 0.0f;
}

// Writes lse and maximum of one head of one token, given in base 2 including the scale.
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

// Index in [token, split, head].
__device__ __forceinline__ int64_t split_index(const DecodeArgs& a, int32_t token, int32_t split, int32_t head) {
  return (static_cast<int64_t>(token) * a.num_splits + split) * a.num_heads + head;
}

// Writes what the combine kernel needs of a head of a split, apart from the sums.
__device__ __forceinline__ void store_split_head(const DecodeArgs& a, int64_t index, float lse_log2, float maximum_log2, float unshift) {
  a.split_lse[index] = lse_log2;
  a.split_max[index] = maximum_log2;
  a.split_unshift[index] = unshift;
}

// The sinks of a consumer thread's two heads.
__device__ __forceinline__ float2 load_sinks(const DecodeArgs& a, int32_t first_head) {
  const auto load = [&](int head) {
    return __uint_as_float(ptx::ld_if(a.sink != nullptr && head < a.num_heads, a.sink + head, 0xFF800000u));
  };
  return {load(first_head + accumulator_row()), load(first_head + accumulator_row() + 8)};
}

// Publishes a consumer's final sum of weights and maximum per head, for the other consumer.
template <class Shared>
__device__ __forceinline__ void publish_end(Shared& shared, int group, const SoftmaxState& state) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r] + __shfl_xor_sync(~0u, state.sum[r], 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (threadIdx.x % 4 == 0) shared.ends[group][accumulator_row() + 8 * r] = {sum, state.maximum[r]};
  }
}

// Factors that turn a consumer thread's sums of values into the output (or the split's result), after both consumers called publish_end.
// One of the first consumer's four lanes of a head writes the head's lse and maximum.
template <class Shared, class StoreSplit>
__device__ __forceinline__ float2 finish_softmax(const DecodeArgs& a, Shared& shared, int group, const SoftmaxState& state, float2 sinks,
                                                 float unshift, int32_t token, bool is_split, int32_t first_head,
                                                 const StoreSplit& store_split) {
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = accumulator_row() + 8 * r, head = first_head + row;
    const float2 first = shared.ends[0][row], second = shared.ends[1][row];
    const float sum = first.x + second.x, maximum = fmaxf(first.y, second.y), running_max = state.running_max[r];
    const bool empty = sum == 0.0f;
    const float whole = is_split ? sum : sum + ptx::ex2((r == 0 ? sinks.x : sinks.y) * kLog2e - running_max);
    factor[r] = empty ? 0.0f : (is_split ? 1.0f : unshift) * ptx::rcp(whole);
    if (group == 0 && threadIdx.x % 4 == r && head < a.num_heads) {
      const float lse = empty ? -INFINITY : running_max + __log2f(sum);
      if (is_split) {
        store_split(row, lse, maximum);
      } else {
        store_head(a, token, head, empty, lse, maximum);
      }
    }
  }
  return {factor[0], factor[1]};
}

// The CTA's heads times 256 value dimensions: bf16 results, or a split's fp16 multiples of its unshift (no larger than its keys, which
// fit). They are transposed in shared memory, where no tile is needed any more, so that a warp writes 512 consecutive bytes.
template <class Shared>
__device__ __forceinline__ uint32_t transposed(Shared& shared, int half) {
  return ptx::shared_address(shared.k[0][half * kLeftChunks]);
}
template <class Shared>
__device__ __forceinline__ void transpose_sums(Shared& shared, Sums& sums, float2 factors, int half, bool is_split) {
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x % kWarpgroup / 32 * 16;
  scale_rows(sums, factors.x, factors.y);
  const auto transpose = [&](auto&& convert) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const auto pair = [&](int at) { return convert(sums[i / 8][i % 8 * 8 + at], sums[i / 8][i % 8 * 8 + at + 1]); };
      ptx::stmatrix_x4(transposed(shared, half) + i / 4 * kChunkBytes + unit_offset(warp_row + lane % 16, i % 4 * 2 + lane / 16), pair(0),
                       pair(2), pair(4), pair(6));
    }
  };
  if (is_split) {
    transpose([](float low, float high) { return ptx::cvt_f16x2(low, high); });
  } else {
    transpose([](float low, float high) { return ptx::cvt_bf16x2(low, high); });
  }
  __syncwarp();
}
// Rotates back the rotary dimensions of the warp's heads in the transposed results; eight dimensions of a head per thread.
template <class Shared>
__device__ __forceinline__ void rotate_transposed(Shared& shared) {
  constexpr int kUnits = kRotaryDims / 8;
  const int lane = threadIdx.x % 32, unit = lane % kUnits, warp_row = threadIdx.x % kWarpgroup / 32 * 16;
  const uint32_t rows = transposed(shared, 1) + (kLeftChunks - 1) * kChunkBytes;
#pragma unroll 1
  for (int r = lane / kUnits; r < 16; r += 32 / kUnits) {
    const uint32_t at = rows + unit_offset(warp_row + r, unit);
    ptx::st_shared(at, rotate_back(ptx::ld_shared(at), shared.rotation + 4 * unit));
  }
  __syncwarp();
}
// A loop: code that runs once costs more to fetch than to execute.
template <class Shared>
__device__ __forceinline__ void store_transposed(const DecodeArgs& a, Shared& shared, int half, int32_t token, int32_t split, bool is_split,
                                                 int32_t first_head) {
  const int lane = threadIdx.x % 32, first_dim = half * (kValueDim / 2) + 8 * lane, warp_row = threadIdx.x % kWarpgroup / 32 * 16;
  const uint32_t source = transposed(shared, half) + lane / 8 * kChunkBytes;
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  const int first = first_head + warp_row, rows = min(16, a.num_heads - first);
  const int64_t stride = is_split ? kValueDim : a.out_head_stride;
  uint16_t* target = (is_split ? a.split_out + split_index(a, token, split, 0) * kValueDim
                               : a.out + batch * a.out_batch_stride + query * a.out_query_stride) +
                     first * stride + first_dim;
#pragma unroll 4
  for (int r = 0; r < rows; ++r, target += stride) {
    const uint4 v = ptx::ld_shared(source + unit_offset(warp_row + r, lane % 8));
    ptx::st_global(target, v);
  }
}

}  // namespace strata::cuda::sparse_decode
