// Sparse decode attention on Hopper for few heads per CTA: 8, 16 or 32 heads of one query token over one split of its rows. Used for calls
// with few heads, and for small calls of more (plan.h).
//
// The floor is 584 (V3.2: 656) bytes a row at 4.3 TB/s. Rows stay in shared memory as they are in memory. They are converted in registers,
// once for the logits and once for the values. A tile of 64 rows and 16 heads, cycles of one SM:
//   memory         64 x 584 B at a 132nd of 4.3 TB/s, 1.75 GHz                                                                 2010
//   shared memory  128 B a cycle: rows written, read for logits and read for values, 292 each; queries and weights 256         1130
//                  (counted, with scales, the softmax's exchange and the two ends of a block: 1450 with 8 heads, 1860 with 32)
//   tensor cores   64 wgmma of 64x16x16                                                                                         512
//   issue slots    of a scheduler, all roles (counted, 32 heads)                                                              1660
// With 4.3 TB/s and 1 us of memory latency, 33 KB per SM must be in flight all the time. The ring has four tiles of 37 KB, and the loading
// warps wait only for its stages. Reached at 128 tokens: docs/kernels/sparse_attn_decode.md.
//
// e4m3 values are exact in fp16. A block's scale is multiplied to its fp32 logits, and to the values relative to the largest scale so far.
// So any scale fits.
//
// Roles: two warpgroups compute logits and softmax of alternate tiles (few_heads_softmax.cuh). Two accumulate half of the value dimensions
// each, of all tiles (few_heads_values.cuh): no sums are combined at the end, and a CTA's last tile takes the shortest time. The last
// warpgroup loads.
#pragma once

#include "backends/cuda/device/touch.cuh"
#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_queries.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_start.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_values.cuh"

namespace strata::cuda::sparse_decode {

// Registers per thread of each role; all start with the same number. With kPersistent the logits groups keep more state across tokens.
template <int kHeads, bool kPersistent = false>
struct Registers {
  static constexpr bool kMany = kHeads > 16;
  static constexpr int kAtStart = 65536 / few_heads::kBlockThreads / 8 * 8;
  static constexpr int kLoader = kMany ? 32 : 48,
                       kLogits = kMany         ? 96
                                 : kPersistent ? 120
                                               : 112,
                       kValues = kMany         ? 128
                                 : kPersistent ? 96
                                               : 104;
  static_assert(kLoader + few_heads::kLogitGroups * kLogits + few_heads::kValueGroups * kValues <= (few_heads::kGroups + 1) * kAtStart);
};

template <KvFormat kFormat, int kHeads, Cut kCut>
__global__ void __launch_bounds__(few_heads::kBlockThreads, 1) few_heads_kernel(const __grid_constant__ DecodeArgs a) {
  using namespace few_heads;
  constexpr bool kInCluster = kCut == Cut::in_cluster;
  using Block = Shared<kFormat, kHeads, kInCluster>;
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Block*>(shared_bytes);
  const CtaWork<kCut> work(a, kHeads);
  const int group = own_warpgroup(), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;

  ptx::launch_dependents();
  if (!work.exists()) return;
  if (group == kGroups) {
    load_block<Registers<kHeads>::kLoader>(a, shared, work, warp, lane);
    return;
  }
  if (threadIdx.x == 0) few_heads::prepare(shared);
  few_heads::meet<Block>();
  prefetch_queries<Block, kConsumers>(a, work.batch, work.query, work.first_head);
  // Not by a loading warp: a load with an unused result is waited for when its register is next written.
  if (kCut != Cut::scheduled && threadIdx.x == kConsumers - 1) {
    for (const Scope& scope : a.scope) {
      if (scope.lengths != nullptr) touch(scope.lengths + work.batch);
    }
  }
  NormOf<kFormat> norm(a, work.token);
  ptx::wait_for_previous_kernel();
  if (threadIdx.x == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.previous_ended));
  int32_t tiles;
  bool is_split;
  {
    few_heads::Queries<Block> queries;
    queries.load(a, work.batch, work.query, work.first_head);
    norm.confirm(a, work.token);
    const TokenRows rows = work.rows(a, work.lengths(a));
    const BlockTiles of_block = work.tiles(rows);
    if (!work.has_work(rows)) return;
    tiles = of_block.end - of_block.first, is_split = work.is_split(rows);
    if constexpr (kInCluster) {
      if (is_split && threadIdx.x < 32) prepare_combine(a, shared, rows, work.split, work.first_head);
    }
    if (threadIdx.x < kHeads) {
      const int32_t head = work.first_head + static_cast<int32_t>(threadIdx.x);
      shared.sink[threadIdx.x] = a.sink != nullptr && head < a.num_heads ? a.sink[head] * kLog2e : -INFINITY;
    }
    prepare_softmax(shared);
    queries.store(shared, norm, a.scale_log2);
  }
  ptx::fence_proxy_async();
  ptx::barrier_sync(kAllConsumers, kConsumers);
  if (group < kLogitGroups) {
    ptx::registers_grow<Registers<kHeads>::kLogits>();
    softmax_token(a, shared, group, warp, tiles, work.token, work.split, work.first_head, is_split);
  } else {
    ptx::registers_grow<Registers<kHeads>::kValues>();
    const int first_block = group == kLogitGroups ? 0 : kOwnBlocks;
    if constexpr (!Block::kV4) {
      add_token<false>(a, shared, first_block, warp, tiles, work.token, work.split, work.first_head, is_split);
    } else if (first_block == 0) {
      add_token<false>(a, shared, 0, warp, tiles, work.token, work.split, work.first_head, is_split);
    } else {
      add_token<true>(a, shared, kOwnBlocks, warp, tiles, work.token, work.split, work.first_head, is_split);
    }
  }
}

}  // namespace strata::cuda::sparse_decode
