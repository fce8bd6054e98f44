// Queries of a CTA's heads as fp16, scaled per head so that the largest is in [2^14, 2^15): fp16 never overflows. Heads that do not exist
// are zero. Raw queries go through shared memory first, so that the conversion is a loop: code that runs once costs more to fetch than to
// execute.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/producer.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/query_norm.cuh"

namespace strata::cuda::sparse_decode {

// A warp has whole heads.
template <class Shared>
struct QueryLayout {
  static constexpr int kUnits = kRowDims<Shared::kFormat> / 8, kLoads = (kUnits + 31) / 32;
  static constexpr int kWarpHeads = Shared::kHeads / (kConsumerThreads / 32);

  static __device__ __forceinline__ int first_head() { return threadIdx.x % kConsumerThreads / 32 * kWarpHeads; }
  static __device__ __forceinline__ uint32_t address(Shared& shared, int head, int unit) {
    return ptx::shared_address(shared.q) + unit / 8 * Shared::kHeadBytes + unit_offset(head, unit % 8);
  }
};

// A thread's queries of its warp's heads, loading from memory.
template <class Shared>
struct Queries {
  using Layout = QueryLayout<Shared>;
  static constexpr int kHeads = Layout::kWarpHeads;
  const int first;
  uint4 v[kHeads][Layout::kLoads];

  __device__ __forceinline__ Queries(const DecodeArgs& a, int32_t batch, int32_t query, int32_t first_head) : first(Layout::first_head()) {
    const int lane = threadIdx.x % 32;
    const uint16_t* q = a.q + batch * a.q_batch_stride + query * a.q_query_stride + (first_head + first) * a.q_head_stride;
    const int heads = a.num_heads - first_head - first;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < Layout::kLoads; ++i) {
        const int unit = lane + 32 * i;
        v[h][i] = ptx::ld_once_if(h < heads && unit < Layout::kUnits, q + h * a.q_head_stride + 8 * unit);
      }
    }
  }
  __device__ __forceinline__ void store(Shared& shared) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < Layout::kLoads; ++i) {
        if (lane + 32 * i < Layout::kUnits) ptx::st_shared(Layout::address(shared, first + h, lane + 32 * i), v[h][i]);
      }
    }
  }
};

// Converts a warp's raw queries of some heads to fp16 in registers. exponent: the power of two that their values are to be multiplied by.
template <class Shared, class Norm, int kHeads>
__device__ __forceinline__ void convert_heads(const Norm& norm, uint4 (&v)[kHeads][QueryLayout<Shared>::kLoads], int (&exponent)[kHeads]) {
  constexpr int kLoads = QueryLayout<Shared>::kLoads;
  if constexpr (Norm::kPresent) {
    if (norm.is_enabled()) {
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

// Converts the warp's heads in shared memory, in place.
template <class Norm, class Shared>
__device__ __forceinline__ void convert_queries(const Norm& norm, Shared& shared) {
  using Layout = QueryLayout<Shared>;
  constexpr int kHeadsAtOnce = 2;  // heads at a time, so that one head's latency overlaps the other's work
  const int lane = threadIdx.x % 32, first = Layout::first_head();
#pragma unroll 1
  for (int head = first; head < first + Layout::kWarpHeads; head += kHeadsAtOnce) {
    uint4 v[kHeadsAtOnce][Layout::kLoads];
    int exponent[kHeadsAtOnce];
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
#pragma unroll
      for (int i = 0; i < Layout::kLoads; ++i) {
        v[h][i] = lane + 32 * i < Layout::kUnits ? ptx::ld_shared(Layout::address(shared, head + h, lane + 32 * i)) : uint4{};
      }
    }
    convert_heads<Shared>(norm, v, exponent);
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
#pragma unroll
      for (int i = 0; i < Layout::kLoads; ++i) {
        if (lane + 32 * i < Layout::kUnits) ptx::st_shared(Layout::address(shared, head + h, lane + 32 * i), v[h][i]);
      }
      if (lane == 0) shared.q_scale[head + h] = pow2(exponent[h]);
    }
  }
}

}  // namespace strata::cuda::sparse_decode
