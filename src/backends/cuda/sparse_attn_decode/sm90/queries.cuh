// Queries of a block's heads as fp16 of which the largest of a head is in [2^14, 2^15): nothing overflows, whatever q is. Heads that do not
// exist are zero. Through shared memory as they are, so that the conversion is a loop: code that runs once costs more to fetch than to
// execute.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/producer.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/query_norm.cuh"

namespace strata::cuda::sparse_decode {

// A warp has some whole heads.
template <class Shared>
struct QueryPlace {
  static constexpr int kUnits = kRowLanes<Shared::kFormat> / 8, kLoads = (kUnits + 31) / 32;
  static constexpr int kWarpHeads = Shared::kHeads / (kConsumerThreads / 32);

  static __device__ __forceinline__ int first_head() { return threadIdx.x % kConsumerThreads / 32 * kWarpHeads; }
  static __device__ __forceinline__ uint32_t address(Shared& shared, int head, int unit) {
    return ptx::shared_address(shared.q) + unit / 8 * Shared::kHeadBytes + unit_offset(head, unit % 8);
  }
};

// A thread's queries on their way from memory, of its warp's heads.
template <class Shared>
struct Queries {
  using Place = QueryPlace<Shared>;
  static constexpr int kHeads = Place::kWarpHeads;
  const int first;
  uint4 v[kHeads][Place::kLoads];

  __device__ __forceinline__ Queries(const DecodeArgs& a, int32_t batch, int32_t query, int32_t first_head) : first(Place::first_head()) {
    const int lane = threadIdx.x % 32;
    const uint16_t* q = a.q + batch * a.q_batch_stride + query * a.q_query_stride + (first_head + first) * a.q_head_stride;
    const int heads = a.num_heads - first_head - first;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < Place::kLoads; ++i) {
        const int unit = lane + 32 * i;
        v[h][i] = ptx::ld_once_if(h < heads && unit < Place::kUnits, q + h * a.q_head_stride + 8 * unit);
      }
    }
  }
  __device__ __forceinline__ void store(Shared& shared) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < Place::kLoads; ++i) {
        if (lane + 32 * i < Place::kUnits) ptx::st_shared(Place::address(shared, first + h, lane + 32 * i), v[h][i]);
      }
    }
  }
};

// A warp's raw queries of some heads become fp16 where they are; what their values are to be multiplied by, a power of two.
template <class Shared, class Norm, int kHeads>
__device__ __forceinline__ void convert_heads(const Norm& norm, uint4 (&v)[kHeads][QueryPlace<Shared>::kLoads], int (&exponent)[kHeads]) {
  constexpr int kLoads = QueryPlace<Shared>::kLoads;
  if constexpr (Norm::kPresent) {
    if (norm.wanted()) {
      norm.apply(v);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        exponent[h] = -Norm::kShift;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) v[h][i] = bf16_to_f16(v[h][i], 1.0f);
      }
      return;
    }
  }
  uint32_t largest[kHeads] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) largest[h] = max(largest[h], max_bf16_bits(v[h][i]));
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) largest[h] = __reduce_max_sync(~0u, largest[h]);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    exponent[h] = query_exponent(largest[h]);
    const float factor = pow2(-exponent[h]);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) v[h][i] = bf16_to_f16(v[h][i], factor);
  }
}

// A warp's heads, where they are.
template <class Norm, class Shared>
__device__ __forceinline__ void convert_queries(const Norm& norm, Shared& shared) {
  using Place = QueryPlace<Shared>;
  constexpr int kTogether = 2;  // heads at a time, so that one's latencies are the other's work
  const int lane = threadIdx.x % 32, first = Place::first_head();
#pragma unroll 1
  for (int head = first; head < first + Place::kWarpHeads; head += kTogether) {
    uint4 v[kTogether][Place::kLoads];
    int exponent[kTogether];
#pragma unroll
    for (int h = 0; h < kTogether; ++h) {
#pragma unroll
      for (int i = 0; i < Place::kLoads; ++i) {
        v[h][i] = lane + 32 * i < Place::kUnits ? ptx::ld_shared(Place::address(shared, head + h, lane + 32 * i)) : uint4{};
      }
    }
    convert_heads<Shared>(norm, v, exponent);
#pragma unroll
    for (int h = 0; h < kTogether; ++h) {
#pragma unroll
      for (int i = 0; i < Place::kLoads; ++i) {
        if (lane + 32 * i < Place::kUnits) ptx::st_shared(Place::address(shared, head + h, lane + 32 * i), v[h][i]);
      }
      if (lane == 0) shared.q_scale[head + h] = pow2(exponent[h]);
    }
  }
}

}  // namespace strata::cuda::sparse_decode
