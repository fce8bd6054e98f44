// Sparse decode attention on Hopper for up to 32 heads: all heads of one query token and a part of its rows in each block.
//
// The floor is 584 (V3.2: 656) bytes a row over 4.3 TB/s. Rows stay in shared memory as they are in memory and are made operands in
// registers, once for the logits and once for the values. Of a tile of 64 rows and 16 heads, cycles of one SM:
//   memory         64 x 584 B at a 132nd of 4.3 TB/s, 1.75 GHz                                                                 2010
//   shared memory  128 B a cycle: rows written, read for logits and read for values, 292 each; queries read by four warps 512  1390
//   tensor cores   256 + 256 mma.m16n8k16 at 62 % of the 4 cycles a quarter of an SM that wgmma would take                     830
//   issue slots    2 x 448 conversions at half rate, 512 mma, 260 wide loads, 220 byte permutations, 250 products of scales
//                  and about 600 of the softmax, over four schedulers                                                          900
// With 4.3 TB/s and 1 us from request to data 33 KB an SM have to be on their way at all times; the ring has four to five tiles of 37 KB,
// and the loading warps wait for nothing but its places.
//
// No value is scaled before it meets another: codes are exact in fp16, a block's scale is multiplied to the fp32 logits, and to the weights
// before they meet the values, relative to the largest scale so far. So any scale fits.
//
// Roles: warpgroups take tiles in turn, each with softmax and sums of its own (few_heads_consumer.cuh); the last one loads.
#pragma once

#include "backends/cuda/sm90/sparse_decode/early_start.cuh"
#include "backends/cuda/sm90/sparse_decode/few_heads_epilogue.cuh"
#include "backends/cuda/sm90/sparse_decode/few_heads_loader.cuh"
#include "backends/cuda/sm90/sparse_decode/few_heads_queries.cuh"

namespace strata::cuda::sparse_decode {

template <KvFormat kFormat, int kHeads, bool kAligned>
__global__ void __launch_bounds__(few_heads::kBlockThreads, 1) few_heads_kernel(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  using Shared = few_heads::Shared<kFormat, kHeads>;
  auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int32_t token = static_cast<int32_t>(blockIdx.x), split = static_cast<int32_t>(blockIdx.y);
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;
  const int group = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;

  ptx::launch_dependents();
  if (threadIdx.x == kConsumerThreads) few_heads::prepare(shared);
  __syncthreads();
  // 168 registers at the start. The loading warps give theirs back first, as the others wait for them.
  constexpr int kLoaderRegisters = 40, kManyRegisters = 232;
  static_assert(few_heads::kGroups * kManyRegisters + kLoaderRegisters <= 168 * (few_heads::kGroups + 1));
  if (group == few_heads::kGroups) {
    ptx::registers_shrink<kLoaderRegisters>();
    bring_near<Shared, kWarpgroup>(a, batch, query, 0, split);
    ptx::wait_for_previous_kernel();
    const TokenRows rows(a, Lengths(a, batch));
    const auto [first, end] = BlockTiles(rows, split);
    few_heads::Rows<kFormat> loaded(a, RowList(a, batch, query, rows, end), first, warp, lane);
    if (rows.has(split)) few_heads::load_rows<kAligned>(shared, loaded, end - first, warp, lane);
  } else {
    bring_near<Shared, kWarpgroup>(a, batch, query, 0, split);
    ptx::registers_grow<kManyRegisters>();
    ptx::wait_for_previous_kernel();
    few_heads::Queries<Shared> queries;
    queries.template load<kAligned>(a, batch, query);
    const TokenRows rows(a, Lengths(a, batch));
    const auto [first, end] = BlockTiles(rows, split);
    if (!rows.has(split)) return;
    const int thread = threadIdx.x % kWarpgroup;
    if (thread < kHeads) {
      shared.subtracted[group][0][thread] = shared.maximum[group][thread] = -INFINITY;
      if (group == 0) shared.sink[thread] = a.sink != nullptr && thread < a.num_heads ? a.sink[thread] * kLog2e : -INFINITY;
    }
    few_heads::Sums<Shared> sums;
#pragma unroll
    for (int h = 0; h < Shared::kHeadTiles; ++h) {
      shared.sums[group][h][thread] = {};
#pragma unroll
      for (int i = 0; i < 32; ++i) sums[i / 16][i / 4 % 4][h][i % 4] = 0.0f;
    }
    queries.store(shared, a.scale_log2);
    ptx::barrier_sync(few_heads::kAllConsumers, kConsumerThreads);
    int32_t top_scale = 0;
    const uint32_t turns = few_heads::consume(shared, group, warp, end - first, top_scale, sums);
    few_heads::store<kAligned>(a, shared, group, warp, turns, top_scale, token, split, rows.is_cut(), sums);
  }
}

}  // namespace strata::cuda::sparse_decode
