// Sparse decode attention on Hopper for few heads a block: 8, 16 or 32 of one query token, and a part of its rows. All heads of a call with
// no more, or of a small call (plan.h).
//
// The floor is 584 (V3.2: 656) bytes a row over 4.3 TB/s. Rows stay in shared memory as they are in memory and are made operands in
// registers, once for the logits and once for the values. Of a tile of 64 rows and 16 heads, cycles of one SM:
//   memory         64 x 584 B at a 132nd of 4.3 TB/s, 1.75 GHz                                                                 2010
//   shared memory  128 B a cycle: rows written, read for logits and read for values, 292 each; queries and weights 256         1130
//                  (counted, with scales, the softmax's exchange and the two ends of a block: 1450 with 8 heads, 1860 with 32)
//   tensor cores   64 wgmma of 64x16x16                                                                                         512
//   issue slots    of a scheduler, all roles (counted, 32 heads)                                                              1660
// With 4.3 TB/s and 1 us from request to data 33 KB an SM have to be on their way at all times; the ring has four tiles of 37 KB, and the
// loading warps wait for nothing but its places. Reached at 128 tokens: docs/kernels/20261121-sparse-decode-few-heads.md.
//
// Codes are exact in fp16; a block's scale is multiplied to its fp32 logits, and to the values relative to the largest scale so far. So any
// scale fits.
//
// Roles: two warpgroups take tiles in turn for logits and softmax (few_heads_softmax.cuh), two have half of the value lanes each of all
// tiles (few_heads_values.cuh), so that there are no sums to merge at the end and a block's last tile is on its way through the shortest
// time; the last one loads.
#pragma once

#include "backends/cuda/device/touch.cuh"
#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_queries.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_start.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_values.cuh"

namespace strata::cuda::sparse_decode {

// Of a thread of each role; all start with the same number. In turn the groups of logits keep more from one token to the next.
template <int kHeads, bool kInTurn = false>
struct Registers {
  static constexpr bool kMany = kHeads > 16;
  static constexpr int kAtStart = 65536 / few_heads::kBlockThreads / 8 * 8;
  static constexpr int kLoader = kMany ? 32 : 48, kLogits = kMany ? 96 : kInTurn ? 120 : 112, kValues = kMany ? 128 : kInTurn ? 96 : 104;
  static_assert(kLoader + few_heads::kLogitGroups * kLogits + few_heads::kValueGroups * kValues <= (few_heads::kGroups + 1) * kAtStart);
};

template <KvFormat kFormat, int kHeads, Cut kCut>
__global__ void __launch_bounds__(few_heads::kBlockThreads, 1) few_heads_kernel(const __grid_constant__ DecodeArgs a) {
  using namespace few_heads;
  constexpr bool kInCluster = kCut == Cut::in_cluster;
  using Block = Shared<kFormat, kHeads, kInCluster>;
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Block*>(shared_bytes);
  const Seat<kCut> seat(a, kHeads);
  const int group = own_warpgroup(), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;

  ptx::launch_dependents();
  if (!seat.exists()) return;
  if (group == kGroups) {
    load_block<Registers<kHeads>::kLoader>(a, shared, seat, warp, lane);
    return;
  }
  if (threadIdx.x == 0) few_heads::prepare(shared);
  few_heads::meet<Block>();
  bring_queries_near<Block, kConsumers>(a, seat.batch, seat.query, seat.first_head);
  // Not by a loading warp: the register of a load that nobody uses is waited for when it is written next.
  if (kCut != Cut::scheduled && threadIdx.x == kConsumers - 1) {
    for (const Scope& scope : a.scope) {
      if (scope.lengths != nullptr) touch(scope.lengths + seat.batch);
    }
  }
  NormOf<kFormat> norm(a, seat.token);
  ptx::wait_for_previous_kernel();
  if (threadIdx.x == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.previous_ended));
  int32_t tiles;
  bool is_part;
  {
    few_heads::Queries<Block> queries;
    queries.load(a, seat.batch, seat.query, seat.first_head);
    norm.confirm(a, seat.token);
    const TokenRows rows = seat.rows(a, seat.lengths(a));
    const BlockTiles of_block = seat.tiles(rows);
    if (!seat.has_work(rows)) return;
    tiles = of_block.end - of_block.first, is_part = seat.is_part(rows);
    if constexpr (kInCluster) {
      if (is_part && threadIdx.x < 32) prepare_merge(a, shared, rows, seat.split, seat.first_head);
    }
    if (threadIdx.x < kHeads) {
      const int32_t head = seat.first_head + static_cast<int32_t>(threadIdx.x);
      shared.sink[threadIdx.x] = a.sink != nullptr && head < a.num_heads ? a.sink[head] * kLog2e : -INFINITY;
    }
    prepare_softmax(shared);
    queries.store(shared, norm, a.scale_log2);
  }
  ptx::fence_proxy_async();
  ptx::barrier_sync(kAllConsumers, kConsumers);
  if (group < kLogitGroups) {
    ptx::registers_grow<Registers<kHeads>::kLogits>();
    weigh_token(a, shared, group, warp, tiles, seat.token, seat.split, seat.first_head, is_part);
  } else {
    ptx::registers_grow<Registers<kHeads>::kValues>();
    const int first_block = group == kLogitGroups ? 0 : kOwnBlocks;
    if constexpr (!Block::kV4) {
      add_token<false>(a, shared, first_block, warp, tiles, seat.token, seat.split, seat.first_head, is_part);
    } else if (first_block == 0) {
      add_token<false>(a, shared, 0, warp, tiles, seat.token, seat.split, seat.first_head, is_part);
    } else {
      add_token<true>(a, shared, kOwnBlocks, warp, tiles, seat.token, seat.split, seat.first_head, is_part);
    }
  }
}

}  // namespace strata::cuda::sparse_decode
