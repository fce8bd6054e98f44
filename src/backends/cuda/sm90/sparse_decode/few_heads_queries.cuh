// The queries of the decode kernel for few heads, in the order in which the tensor cores take them.
#pragma once

#include "backends/cuda/sm90/sparse_decode/few_heads_shared.cuh"
#include "backends/cuda/sm90/sparse_decode/producer.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// A consumer warp's heads, each in 16-byte units, one or more a lane: asked for first, converted when they are there, to fp16 of
// which the largest of a head is in [2^14, 2^15). Heads that do not exist are zero.
template <class Shared>
struct Queries {
  static constexpr int kUnits = kRowLanes<Shared::kFormat> / 8, kLoads = (kUnits + 31) / 32;
  static constexpr int kWarps = kConsumerThreads / 32, kTogether = Shared::kHeads / kWarps;
  uint4 v[kTogether][kLoads];

  static __device__ __forceinline__ int head(int i) { return static_cast<int>(threadIdx.x / 32) + i * kWarps; }

  template <bool kAligned>
  __device__ __forceinline__ void load(const DecodeArgs& a, int32_t batch, int32_t query) {
    const uint16_t* q = a.q + batch * a.q_batch_stride + query * a.q_query_stride;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int unit = lane + 32 * j;
        v[i][j] = load_16<kAligned>(head(i) < a.num_heads && unit < kUnits, q + head(i) * a.q_head_stride + 8 * unit);
      }
    }
  }

  __device__ __forceinline__ void store(Shared& shared, float scale_log2) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      uint32_t largest = 0;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) largest = max(largest, max_bf16_bits(v[i][j]));
      largest = __reduce_max_sync(~0u, largest);
      const int exponent = query_exponent(largest);
      const float factor = pow2(-exponent);
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int unit = lane + 32 * j, code_units = 8 * Shared::kCodeBlocks, rotated = unit - code_units;
        if (unit >= kUnits) break;
        // Two units are what a thread of the logits reads of a block of codes; of the rotated lanes it reads one in each four.
        const int pair = rotated < 0 ? unit / 8 * 2 + unit % 2 : code_units / 4 + rotated / 4;
        const int q = rotated < 0 ? unit % 8 / 2 : rotated % 4;
        ptx::st_shared(ptx::shared_address(&shared.q[pair][head(i) / 8][head(i) % 8 * 4 + q]), bf16_to_f16(v[i][j], factor));
      }
      if (lane == 0) shared.factor[head(i)] = scale_log2 * pow2(exponent);
    }
  }
};

}  // namespace strata::cuda::sparse_decode::few_heads
