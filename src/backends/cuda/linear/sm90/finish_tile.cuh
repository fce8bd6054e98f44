// The epilogue of a tile whose partial sums lie in shared memory: adds them over warpgroups and the CTAs of a pair, and stores y, quantised
// or not.
#pragma once

#include "backends/cuda/device/quantize_activation.cuh"
#include "backends/cuda/linear/sm90/own_tile.cuh"
#include "backends/cuda/linear/sm90/store_features.cuh"
#include "backends/cuda/linear/sm90/streamed.h"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/cluster_async.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"

namespace strata::cuda::sm90 {

__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// A lane has four features of a tile whose features share one scale, as its warp has all.
template <class Args>
__device__ __forceinline__ void store_quantized_tile(const Args& a, int group, int token, int feature, float4 sum) {
  const uint32_t low = pack_bf16(sum.x, sum.y), high = pack_bf16(sum.z, sum.w);
  const float values[] = {bf16_low(low), bf16_high(low), bf16_low(high), bf16_high(high)};
  uint32_t quantized[1];
  const float scale = quantize_lanes(values, a.ue8m0, quantized);
  *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(a.y) + token * a.y_stride + group * a.y_group + feature) = quantized[0];
  if (threadIdx.x % 32 == 0) a.y_scale[token * a.y_scale_stride + group * a.y_scale_group + feature / kActivationBlock] = scale;
}

// Expects what the other CTA of a pair will send, on the barrier all_sent. By one thread, before that CTA may send.
template <class Args>
__device__ __forceinline__ void expect_sent(const Args& a, uint32_t all_sent, const OwnTile& tile) {
  if (a.split > 1) ptx::mbarrier_arrive_expect_tx(all_sent, static_cast<uint32_t>((a.num_tokens + 1 - tile.rank) / 2 * a.tile_rows * 4));
}

// Adds the partial sums, once they are stored, and stores y, by the threads that multiplied. 16 lanes per row group have a token. In a pair
// the CTA of a token's parity stores the token. The other CTA's sums are sent first, to `sent_at`, and arrive on the barrier `all_sent`.
// Args: num_tokens, n, tile_rows, split, and where y and y_scale go, as in StreamedArgs.
template <StreamedTile kTile, bool kQuantized, class Args>
__device__ __forceinline__ void finish_tile(const Args& a, const uint8_t* shared, int sent_at, uint32_t all_sent, const OwnTile& tile) {
  constexpr int kLanes = 16 * kTile.row_tiles, kAtOnce = kTile.consumers() / kLanes;  // lanes of a token; tokens at a time
  constexpr bool kByParity = kTile.tokens > kAtOnce;
  const int thread = static_cast<int>(threadIdx.x), feature = 4 * (thread % kLanes);
  const int count = min(a.n - tile.first_feature - feature, 4);
#pragma unroll 1
  for (int pass = 0; pass < (kByParity ? 2 : 1); ++pass) {
#pragma unroll 1
    for (int first = 0; first < kTile.tokens; first += kByParity ? 2 * kAtOnce : kAtOnce) {
      const int token = first + (kByParity ? thread / kLanes * 2 + (pass == 0 ? 1 - tile.rank : tile.rank) : thread / kLanes);
      const bool exists = token < a.num_tokens && feature < a.tile_rows;
      const bool sends = a.split > 1 && token % 2 != tile.rank;
      float4 sum = make_float4(0, 0, 0, 0);
      if (exists) {
        const float* const partial = reinterpret_cast<const float*>(shared) + token * kTile.partial_stride() + feature;
#pragma unroll
        for (int s = 0; s < kTile.slices; ++s) {
          sum = sum + *reinterpret_cast<const float4*>(partial + s * kTile.tokens * kTile.partial_stride());
        }
      }
      const uint8_t* const sent = shared + sent_at + (token / 2 * kTile.row_tiles * kLinearRows + feature) * 4;
      if (exists && sends) {
        ptx::store_async(ptx::map_shared(ptx::shared_address(sent), 1 - tile.rank),
                         make_uint4(__float_as_uint(sum.x), __float_as_uint(sum.y), __float_as_uint(sum.z), __float_as_uint(sum.w)),
                         ptx::map_shared(all_sent, 1 - tile.rank));
      }
      __syncwarp();  // waiting lanes do not keep others from sending
      if (!exists || sends) continue;
      if (a.split > 1) {
        ptx::mbarrier_wait_cluster(all_sent, 0);
        sum = sum + *reinterpret_cast<const float4*>(sent);
      }
      if constexpr (kQuantized) {
        store_quantized_tile(a, tile.group, token, tile.first_feature + feature, sum);
      } else if (count > 0) {
        store_features(a, tile.group, token, tile.first_feature + feature, sum, count);
      }
    }
  }
}

// The same after no warp multiplies from shared memory any more: store(partial) writes a thread's sums to the partial sums,
// [slices][tokens][partial_stride()].
template <StreamedTile kTile, bool kQuantized, class Args, class Store>
__device__ __forceinline__ void end_tile(const Store& store, const Args& a, uint8_t* shared, int sent_at, uint32_t all_sent,
                                         const OwnTile& tile) {
  ptx::barrier_sync(1, kTile.consumers());
  store(reinterpret_cast<float*>(shared));
  if (a.split > 1) ptx::cluster_wait();
  ptx::barrier_sync(1, kTile.consumers());
  finish_tile<kTile, kQuantized>(a, shared, sent_at, all_sent, tile);
}

// Stores sums in wgmma's layout, of a warp's 16 features. `partial` is the address of the first feature of the first token.
template <StreamedTile kTile>
__device__ __forceinline__ void store_partial(const float (&sums)[kTile.tokens / 2], float* partial) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kTile.tokens / 2; ++i) {
    const int token = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    partial[token * kTile.partial_stride() + lane / 4 + i / 2 % 2 * 8] = sums[i];
  }
}

}  // namespace strata::cuda::sm90
