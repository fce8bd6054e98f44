// A block's start: what it can do before the kernel in front of its own has ended, and what follows the wait for that.
#pragma once

#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/seat.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/shared_memory.cuh"

namespace strata::cuda::sparse_decode {

// Brings the queries and sinks of a block of heads to L2, by its first `kThreads` threads, the consumers.
template <class Shared, int kThreads = kConsumerThreads>
__device__ __forceinline__ void bring_queries_near(const DecodeArgs& a, int32_t batch, int32_t query, int32_t first_head) {
  constexpr int kLine = 64, kLines = kRowLanes<Shared::kFormat> / kLine;  // bf16 of 128 bytes
  const int thread = static_cast<int>(threadIdx.x), heads = min(Shared::kHeads, a.num_heads - first_head);
  const uint16_t* q = a.q + batch * a.q_batch_stride + query * a.q_query_stride + first_head * a.q_head_stride;
  if (a.sink != nullptr && thread % 32 == 0 && thread < heads) ptx::prefetch_l2(a.sink + first_head + thread);
#pragma unroll 1  // not more than once or twice
  for (int i = thread; i < heads * kLines; i += kThreads) ptx::prefetch_l2(q + i / kLines * a.q_head_stride + i % kLines * kLine);
}

// Brings what the block reads first to L2: its queries, lengths and first tiles' rows, a chain of three misses of L2 and TLB otherwise, of
// two with indices as if every entry were looked at. Before the wait for the kernel in front lengths and indices may still change, so
// nothing but these hints follows from what they hold by now.
template <class Shared, Cut kCut>
__device__ __forceinline__ void bring_near(const DecodeArgs& a, const Seat<kCut>& seat) {
  constexpr KvFormat kFormat = Shared::kFormat;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kConsumerThreads) {
    bring_queries_near<Shared>(a, seat.batch, seat.query, seat.first_head);
    return;
  }
  if constexpr (kCut != Cut::scheduled) {
    for (const Scope& scope : a.scope) {
      if (scope.lengths != nullptr) ptx::prefetch_l2(scope.lengths + seat.batch);
    }
  }
  const TokenRows rows = seat.expected(a);
  const BlockTiles tiles = seat.tiles(rows);
  const RowList list(a, seat.batch, seat.query, rows, tiles.end);
  const int32_t producer = thread - kConsumerThreads, quarter = producer % 4;
#pragma unroll
  for (int row = 0; row < kStages * kRowTile; row += kProducerThreads / 4) {
    const int32_t at = tiles.first * kRowTile + row + producer / 4;
    RowAddress<kFormat>(a, at < list.main, list.slot(at), quarter).prefetch(quarter);
  }
}

// The producers' list of rows.
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
