// The product and the weighted sum of one tile in the logits kernels of Hopper. V4 10.3, MLA 11.6.
//
// wgmma 64 x N x 32, e4m3: 64 cache rows are the M of a product, the heads of one or two tokens its N. A thread then holds N / 4 sums of
// two rows. So the ReLU and the weighted sum over heads need at most three shuffles per tile, and the head weights stay in N / 4 registers.
// Both operands lie in shared memory, swizzled: rows as TMA writes them, queries as load_queries does.
#pragma once

#include "backends/cuda/indexer/sm90/config.h"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/relu.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/ptx/wgmma.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kRowBytes = kTileRows * kIndexerDim, kScaleBytes = kTileRows * 4;  // of a tile

// Starts to load 64 rows of a page and their scales, with or without an L2 policy. One thread.
template <class... Policy>
__device__ __forceinline__ void load_tile(const LogitsArgs& a, int page, int row, void* rows, void* scales, uint64_t* full,
                                          Policy... policy) {
  const uint32_t barrier = ptx::shared_address(full);
  ptx::mbarrier_arrive_expect_tx(barrier, kRowBytes + kScaleBytes);
  ptx::tma_load_3d(ptx::shared_address(rows), &a.rows_map, 0, row, page, barrier, policy...);
  ptx::bulk_load(ptx::shared_address(scales), a.cache + int64_t{page} * a.page_stride + a.scales_offset + row * 4, kScaleBytes, barrier,
                 policy...);
}

template <int kHeads, int kTokens>
struct Scorer {
  static constexpr int kColumns = kHeads * kTokens;
  static constexpr int kSums = kColumns / 2;  // of a thread
  static constexpr int kQueryBytes = kColumns * kIndexerDim;
  float weights[kColumns / 4];

  // Loads the queries of tokens from `first` on to shared memory, by some threads. The caller has barriers around it.
  __device__ static void load_queries(const LogitsArgs& a, uint8_t* queries, int64_t first, uint32_t thread, uint32_t threads) {
    for (int i = thread; i < kColumns * 8; i += threads) {
      const int column = i / 8, unit = i % 8;  // 16 bytes of a vector
      const int64_t token = first + column / kHeads;
      const int head = column % kHeads;
      uint4 v{};
      if (token < a.num_tokens && head < a.heads) v = reinterpret_cast<const uint4*>(a.q + (token * a.heads + head) * kIndexerDim)[unit];
      reinterpret_cast<uint4*>(queries + column * kIndexerDim)[unit ^ (column % 8)] = v;
    }
    ptx::fence_proxy_async();
  }
  // weight(i): the weight of column i.
  template <class Weight>
  __device__ void set_weights(Weight&& weight) {
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) weights[i] = weight(i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2);
  }
  // The weight of column i of tokens from `first` on.
  __device__ static float weight(const LogitsArgs& a, int64_t first, int column) {
    const int64_t token = first + column / kHeads;
    const int head = column % kHeads;
    return token < a.num_tokens && head < a.heads ? a.weights[token * a.heads + head] : 0.0f;
  }
  // For token quad / 2 (with two) and row quad % 2 of this thread's.
  __device__ float weighted_sum(const float (&sums)[kSums]) const {
    float total[kTokens][2] = {};
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int column = i / 4 * 8;  // of the first in the group of eight
      float& sum = total[column / kHeads][i / 2 % 2];
      sum += weights[i / 4 * 2 + i % 2] * ptx::relu_nan(sums[i]);
    }
    const bool second = (threadIdx.x & 1) != 0;
    float of_row[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float keep = second ? total[t][1] : total[t][0], give = second ? total[t][0] : total[t][1];
      of_row[t] = keep + __shfl_xor_sync(0xFFFFFFFFu, give, 1);
    }
    if constexpr (kTokens == 1) return of_row[0] + __shfl_xor_sync(0xFFFFFFFFu, of_row[0], 2);
    const bool later = (threadIdx.x & 2) != 0;
    const float keep = later ? of_row[kTokens - 1] : of_row[0], give = later ? of_row[0] : of_row[kTokens - 1];
    return keep + __shfl_xor_sync(0xFFFFFFFFu, give, 2);
  }
};

// Starts sums = rows x queries, both at shared addresses.
template <int kSums>
__device__ __forceinline__ void multiply(float (&sums)[kSums], uint32_t rows, uint32_t queries) {
  const uint64_t a = ptx::wgmma_descriptor(rows), b = ptx::wgmma_descriptor(queries);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) ptx::wgmma_e4m3(sums, a + 2 * step, b + 2 * step, step > 0);
  ptx::wgmma_commit();
}

}  // namespace strata::cuda::sm90
