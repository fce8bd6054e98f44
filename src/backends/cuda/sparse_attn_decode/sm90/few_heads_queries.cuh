// The queries of the decode kernel for few heads, in the order in which the tensor cores take them. Of 64 dimensions, step s of 16 has at 2
// q + 8 i + (0, 1) what thread q of four has of a row as its dimensions 4 s + 2 i + (0, 1) (few_heads_logits.cuh).
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/few_heads_shared.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/producer.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/query_norm.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// bf16 values times a power of two.
__device__ __forceinline__ uint4 scaled_bf16(uint4 v, float factor) {
  const auto two = [factor](uint32_t pair) {
    return ptx::cvt_bf16x2(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xFFFF0000u) * factor);
  };
  return {two(v.x), two(v.y), two(v.z), two(v.w)};
}

// Stores a head's queries; each lane has every 32nd unit of 16 bytes.
template <class Shared, class Norm, int kLoads>
__device__ __forceinline__ void store_queries(Shared& shared, int head, const Norm& norm, const uint4 (&raw)[kLoads], float scale_log2) {
  constexpr int kUnits = kRowDims<Shared::kFormat> / 8;
  const int lane = threadIdx.x % 32;
  uint4 of_head[1][kLoads];
  uint4(&v)[kLoads] = of_head[0];
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kLoads; ++j) v[j] = raw[j], largest = max(largest, max_bf16_bits(v[j]));
  largest = __reduce_max_sync(~0u, largest);
  int exponent = query_exponent(largest);
  float factor = pow2(-exponent);
  if constexpr (Norm::kPresent) {
    if (norm.is_enabled()) norm.apply(of_head), exponent = -Norm::kShift, factor = 1.0f;
  }
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    const int unit = lane + 32 * j, in_chunk = unit % 8;
    if (unit >= kUnits) break;
    // A logits thread reads two adjacent units of a block of e4m3 values, and one of each four units of the rotary dimensions.
    const bool rotated = unit >= 8 * Shared::kQuantizedBlocks;
    const int q = rotated ? in_chunk % 4 : in_chunk / 2, first_step = rotated ? in_chunk / 4 * 2 : in_chunk % 2 * 2;
    const uint4 packed = rotated ? scaled_bf16(v[j], factor) : bf16_to_f16(v[j], factor);
    uint8_t* const chunk = shared.q[unit / 8];
    const auto word = [&](int step, int half) -> uint32_t& {
      return *reinterpret_cast<uint32_t*>(chunk + unit_offset(head, 2 * (first_step + step) + half) + 4 * q);
    };
    word(0, 0) = packed.x, word(0, 1) = packed.y, word(1, 0) = packed.z, word(1, 1) = packed.w;
  }
  if (lane == 0) shared.factor[head] = scale_log2 * pow2(exponent);
}

// A consumer warp's heads, in 16-byte units, one or more per lane. Loads are issued first. store() converts to fp16, with the largest of a
// head in [2^14, 2^15); rotary dimensions stay bf16, as in the cache rows. Heads that do not exist are zero.
template <class Shared>
struct Queries {
  static constexpr int kUnits = kRowDims<Shared::kFormat> / 8, kLoads = (kUnits + 31) / 32;
  static constexpr int kWarps = kConsumers / 32, kHeadsPerWarp = (Shared::kHeads + kWarps - 1) / kWarps;
  uint4 v[kHeadsPerWarp][kLoads];

  static __device__ __forceinline__ int head(int i) { return static_cast<int>(threadIdx.x / 32) + i * kWarps; }

  __device__ __forceinline__ void load(const DecodeArgs& a, int32_t batch, int32_t query, int32_t first_head) {
    const uint16_t* q = a.q + batch * a.q_batch_stride + query * a.q_query_stride + first_head * a.q_head_stride;
    const int lane = threadIdx.x % 32, heads = a.num_heads - first_head;
#pragma unroll
    for (int i = 0; i < kHeadsPerWarp; ++i) {
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int unit = lane + 32 * j;
        v[i][j] = ptx::ld_once_if(head(i) < heads && unit < kUnits, q + head(i) * a.q_head_stride + 8 * unit);
      }
    }
  }

  // Code that runs once is slow to fetch: a loop over heads.
  template <class Norm>
  __device__ __forceinline__ void store(Shared& shared, const Norm& norm, float scale_log2) {
#pragma unroll 1
    for (int head = this->head(0); head < Shared::kHeads; head += kWarps) {
      store_queries(shared, head, norm, v[0], scale_log2);
#pragma unroll
      for (int i = 1; i < kHeadsPerWarp; ++i) {
#pragma unroll
        for (int j = 0; j < kLoads; ++j) v[i - 1][j] = v[i][j];
      }
    }
  }
};

}  // namespace strata::cuda::sparse_decode::few_heads
