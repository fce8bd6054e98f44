// Sparse decode attention on Hopper for up to 32 heads: all heads of one query token and a part of its rows in each block.
//
// With 64 rows as M and the heads as N of wgmma nothing is padded to 64 heads, and of a tile's resources memory is the scarcest:
//   memory         64 x 584 B at a 132nd of 4.3 TB/s, 1.75 GHz                                                            2010 cycles
//   shared memory  128 B a cycle: keys written, read for logits and read for values, 512 each                            1536
//   tensor cores   32 + 32 instructions that read 2 KB of keys each, 16 cycles                                           1024
// So the floor is 584 (V3.2: 656) bytes a row over 4.3 TB/s.
//
// Roles: warpgroups 0 and 1 consume tiles in turn, each with its own softmax and sums (few_heads_consumer.cuh), 2 and 3 produce.
#pragma once

#include "backends/cuda/sm90/sparse_decode/early_start.cuh"
#include "backends/cuda/sm90/sparse_decode/few_heads_consumer.cuh"

namespace strata::cuda::sparse_decode {

template <KvFormat kFormat, int kHeads, bool kAligned>
__global__ void __launch_bounds__(kThreads, 1) few_heads_kernel(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  using Shared = SharedMemory<kFormat, kHeads>;
  auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int32_t token = static_cast<int32_t>(blockIdx.x), split = static_cast<int32_t>(blockIdx.y);
  const int32_t batch = token / a.num_queries, query = token - batch * a.num_queries;

  ptx::launch_dependents();
  prepare(shared);
  __syncthreads();
  bring_near<Shared>(a, batch, query, 0, split);
  ptx::wait_for_previous_kernel();
  const TokenRows rows(a, Lengths(a, batch));
  const auto [first, end] = BlockTiles(rows, split);
  if (!rows.has(split)) return;

  // 32 heads: a consumer has 128 sums of values a thread.
  constexpr int kManyRegisters = 184;
  const int group = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  uint32_t step = 0;
  if (group < 2) {
    if constexpr (kHeads > 16) ptx::registers_grow<kManyRegisters>();
    load_queries<kAligned>(a, shared, batch, query, 0);
    few_heads::Sums<Shared> sums;
    for (bool again = false;; again = true) {
      const float unshift = pow2(-shared.key_shift);
      few_heads::State<Shared> state;
      if (threadIdx.x < kHeads) shared.alpha[threadIdx.x] = a.scale_log2 * shared.q_scale[threadIdx.x] * unshift;
      ptx::barrier_sync(kQueryReady, kConsumerThreads);
#pragma unroll
      for (int c = 0; c < few_heads::kColumns<Shared>; ++c) {
        state.subtracted[c] = state.maximum[c] = -INFINITY;
        state.sum[c] = 0.0f;
      }
#pragma unroll
      for (int chunk = 0; chunk < kValueDim / kChunkLanes; ++chunk) {
#pragma unroll
        for (int i = 0; i < kHeads / 2; ++i) sums[chunk][i] = 0.0f;
      }
      few_heads::consume(shared, group, end - first, step, state, sums);
      step += end - first;
      __syncthreads();
      if (again || shared.overflow == 0) {
        few_heads::finish(a, shared, group, state, unshift, token, split, rows.is_cut(), sums);
        break;
      }
      __syncthreads();
    }
    few_heads::store<kAligned>(a, shared, group, token, split, rows.is_cut(), sums);
  } else {
    if constexpr (kHeads > 16) ptx::registers_shrink<256 - kManyRegisters>();
    share_list(a, shared, batch, query, rows, end);
    produce_all<kAligned>(a, shared, first, end);
  }
}

}  // namespace strata::cuda::sparse_decode
