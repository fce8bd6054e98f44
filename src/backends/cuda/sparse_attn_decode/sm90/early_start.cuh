// The start of a CTA: work before the preceding kernel has finished, and what follows the wait for it.
#pragma once

#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/cta_work.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/shared_memory.cuh"

namespace strata::cuda::sparse_decode {

// Prefetches the queries and sinks of a CTA's heads to L2, by its first `kThreads` threads, the consumers.
template <class Shared, int kThreads = kConsumerThreads>
__device__ __forceinline__ void prefetch_queries(const DecodeArgs& a, int32_t batch, int32_t query, int32_t first_head) {
  constexpr int kLine = 64, kLines = kRowDims<Shared::kFormat> / kLine;  // bf16 of 128 bytes
  const int thread = static_cast<int>(threadIdx.x), heads = min(Shared::kHeads, a.num_heads - first_head);
  const uint16_t* q = a.q + batch * a.q_batch_stride + query * a.q_query_stride + first_head * a.q_head_stride;
  if (a.sink != nullptr && thread % 32 == 0 && thread < heads) ptx::prefetch_l2(a.sink + first_head + thread);
#pragma unroll 1  // at most two iterations
  for (int i = thread; i < heads * kLines; i += kThreads) ptx::prefetch_l2(q + i / kLines * a.q_head_stride + i % kLines * kLine);
}

// Prefetches what the CTA reads first to L2: queries, lengths and the rows of the first tiles. Otherwise these are a chain of three misses
// of L2 and TLB; indices are loaded as if every entry were inside its length, which saves one. Before the wait for the preceding kernel,
// lengths and indices may still change, so their values are used for these hints only.
template <class Shared, Cut kCut>
__device__ __forceinline__ void prefetch_inputs(const DecodeArgs& a, const CtaWork<kCut>& work) {
  constexpr KvFormat kFormat = Shared::kFormat;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kConsumerThreads) {
    prefetch_queries<Shared>(a, work.batch, work.query, work.first_head);
    return;
  }
  if constexpr (kCut != Cut::scheduled) {
    for (const Scope& scope : a.scope) {
      if (scope.lengths != nullptr) ptx::prefetch_l2(scope.lengths + work.batch);
    }
  }
  const TokenRows rows = work.expected(a);
  const BlockTiles tiles = work.tiles(rows);
  const RowList list(a, work.batch, work.query, rows, tiles.end);
  const int32_t producer = thread - kConsumerThreads, quarter = producer % 4;
#pragma unroll
  for (int row = 0; row < kStages * kRowTile; row += kProducerThreads / 4) {
    const int32_t at = tiles.first * kRowTile + row + producer / 4;
    RowAddress<kFormat>(a, at < list.main, list.slot(at), quarter).prefetch(quarter);
  }
}

// Publishes the producers' list of rows.
template <class Shared>
__device__ __forceinline__ void share_list(const DecodeArgs& a, Shared& shared, int32_t batch, int32_t query, const TokenRows& rows,
                                           int32_t end) {
  constexpr uint32_t kListReady = 15;
  if (threadIdx.x == kConsumerThreads) {
    shared.list = RowList(a, batch, query, rows, end);
    shared.token = batch * a.num_queries + query;
  }
  ptx::barrier_sync(kListReady, kProducerThreads);
}

}  // namespace strata::cuda::sparse_decode
