// Sparse decode of 65 to 128 heads over at most two tiles of rows (a window alone) on Hopper: one block has a token, and its two tiles of
// 64 heads take turns over the same rows, which are converted once and stay in the two stages. The producers bring the second turn's
// queries as soon as the first turn's logits are done with theirs.
//
// Floor of 128 tokens: queries, rows and results, 43 MB, 10 us of memory; a block has four tiles of 2048 cycles on the tensor cores, 4.7
// us. Reached on an H200 (2026-11-21): 22.6 us, where blocks of 64 heads take 26.1.
#pragma once

#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/sm90/sparse_decode/kernel.cuh"

namespace strata::cuda::sparse_decode {

template <KvFormat kFormat>
struct HeadTurnsShared : SharedMemory<kFormat, kHeadTile> {
  // A warp's own: of a producer, some of the second turn's queries until the first turn's are done with; then of a consumer, results on
  // their way to memory.
  static constexpr int kHeadsAside = 3;
  uint8_t aside[kConsumerThreads / 32][kHeadsAside * 2 * kRowLanes<kFormat>];
  uint64_t queries_free;  // the first turn's logits are done
};

// The second turn's queries, by the producers: made ready while the first turn's logits need the place of theirs, as many as registers hold
// and the others aside. If the first turn has to start over its queries stay.
template <class Shared>
__device__ __forceinline__ void second_queries(const DecodeArgs& a, Shared& shared, int32_t batch, int32_t query, bool again) {
  using Place = QueryPlace<Shared>;
  constexpr int kAside = Shared::kHeadsAside, kHeld = Place::kWarpHeads - kAside;
  static_assert(Place::kUnits % 32 == 0);
  const int lane = threadIdx.x % 32, first = Place::first_head();
  const uint32_t aside = ptx::shared_address(shared.aside[(threadIdx.x - kConsumerThreads) / 32]) + 16 * lane;
  const uint16_t* const q = a.q + batch * a.q_batch_stride + query * a.q_query_stride + (kHeadTile + first) * a.q_head_stride + 8 * lane;
#pragma unroll
  for (int i = 0; i < kAside * Place::kLoads; ++i) {
    const int head = i / Place::kLoads;
    ptx::cp_async_16_or_zero(aside + 512 * i, q + head * a.q_head_stride + i % Place::kLoads * 256,
                             kHeadTile + first + head < a.num_heads ? 16 : 0);
  }
  ptx::cp_async_commit();
  Queries<true, Shared, kHeld> held(a, batch, query, kHeadTile, kAside);
  ptx::cp_async_wait<0>();
  int exponent_of_lane = 0;
#pragma unroll
  for (int head = 0; head < kAside; ++head) {
    uint4 v[1][Place::kLoads];
    int exponent[1];
#pragma unroll
    for (int i = 0; i < Place::kLoads; ++i) v[0][i] = ptx::ld_shared(aside + 512 * (head * Place::kLoads + i));
    convert_heads<Shared>(v, exponent);
#pragma unroll
    for (int i = 0; i < Place::kLoads; ++i) ptx::st_shared(aside + 512 * (head * Place::kLoads + i), v[0][i]);
    if (lane == head) exponent_of_lane = exponent[0];
  }
  int exponent[kHeld];
  convert_heads<Shared>(held.v, exponent);
#pragma unroll
  for (int head = 0; head < kHeld; ++head) {
    if (lane == kAside + head) exponent_of_lane = exponent[head];
  }
  ptx::barrier_sync(kProducersMeet, kProducerThreads);
  if (!again && shared.overflow != 0) return;
  ptx::mbarrier_wait(ptx::shared_address(&shared.queries_free), again);
  held.store(shared);
#pragma unroll
  for (int i = 0; i < kAside * Place::kLoads; ++i) {
    const uint4 v = ptx::ld_shared(aside + 512 * i);
    ptx::st_shared(Place::address(shared, first + i / Place::kLoads, lane + i % Place::kLoads * 32), v);
  }
  if (lane < Place::kWarpHeads) shared.q_scale[first + lane] = pow2(exponent_of_lane);
  ptx::fence_proxy_async();
}

// A consumer's sums of its block of heads to `out`, 64 lanes at a time through shared memory, so that a head's 128 bytes are written
// together: the stages hold keys that the next turn needs.
template <class Shared>
__device__ __forceinline__ void store_sums(const DecodeArgs& a, Shared& shared, Sums& sums, int half, int32_t batch, int32_t query,
                                           int32_t first_head) {
  const int row = accumulator_row(), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  scale_rows(sums, shared.alpha[row], shared.alpha[row + 8]);
  const uint32_t buffer = ptx::shared_address(shared.aside[warp]);
  const int32_t first = first_head + warp % 4 * 16 + lane / 8;
  uint16_t* target =
      a.out + batch * a.out_batch_stride + query * a.out_query_stride + first * a.out_head_stride + half * (kValueDim / 2) + lane % 8 * 8;
#pragma unroll
  for (int chunk = 0; chunk < kLeftChunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const eight = &sums[chunk / 2][chunk % 2 * 32 + i * 8];
      ptx::stmatrix_x4(buffer + unit_offset(lane % 16, 2 * i + lane / 16), ptx::cvt_bf16x2(eight[0], eight[1]),
                       ptx::cvt_bf16x2(eight[2], eight[3]), ptx::cvt_bf16x2(eight[4], eight[5]), ptx::cvt_bf16x2(eight[6], eight[7]));
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 16; r += 4) {
      const uint4 v = ptx::ld_shared(buffer + unit_offset(r + lane / 8, lane % 8));
      if (first + r < a.num_heads) ptx::st_global(target + r * a.out_head_stride + chunk * kChunkLanes, v);
    }
    __syncwarp();
  }
}

// What a consumer does around the logits of its tile: tells that they are done with the queries, and stores the results of the turn before.
template <class Started, class Done>
struct AroundLogits {
  static constexpr bool kOneTile = true;  // each consumer has
  const Started& logits_started;
  const Done& logits_done;
};

// Rows of the caches, of q and of out start at multiples of 16 bytes.
template <KvFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1) sparse_decode_head_turns_kernel(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  using Shared = HeadTurnsShared<kFormat>;
  auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int32_t token = static_cast<int32_t>(blockIdx.x), batch = token / a.num_queries, query = token - batch * a.num_queries;

  ptx::launch_dependents();
  if (threadIdx.x == 0) ptx::mbarrier_init(ptx::shared_address(&shared.queries_free), kConsumerThreads / 32);
  prepare(shared);
  __syncthreads();
  bring_near<Shared>(a, batch, query, 0, 0);

  const int role = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  uint32_t step = 0;
  bool again = false;
  if (role < 2) {
    ptx::wait_for_previous_kernel();
    const Lengths lengths(a, batch);
    load_queries<true>(a, shared, batch, query, 0);
    bring_queries_near<Shared>(a, batch, query, kHeadTile);
    const int32_t tiles = TokenRows(a, lengths).tiles;
    ptx::registers_grow<kConsumerRegisters>();
    Sums sums;
    int32_t first_head = 0;
    const auto logits_done = [&] {
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.queries_free));
    };
    const auto logits_started = [&] {
      if (first_head > 0) store_sums(a, shared, sums, role, batch, query, 0);
      clear(sums);
    };
#pragma unroll 1
    for (;;) {
      const float unshift = pow2(-shared.key_shift), scale = a.scale_log2 * unshift;
      const float2 factor = {scale * shared.q_scale[accumulator_row()], scale * shared.q_scale[accumulator_row() + 8]};
      SoftmaxState state;
      if (role >= tiles) {
        logits_started();
        logits_done();
      }
      consume(shared, role, tiles, step, factor, state, sums, AroundLogits{logits_started, logits_done});
      const float sink = load_sink(a, first_head);
      if (first_head > 0) {
        ptx::barrier_sync(kQueryReady, kConsumerThreads);
      } else {
        __syncthreads();  // with the second turn's queries, or an overflow
        if (!again && shared.overflow != 0) {
          again = true;
          step += tiles;
          __syncthreads();
          continue;
        }
      }
      merge_softmax(shared, role, state);
      if (role == 0) finish_softmax(a, shared, state, sink, unshift, token, 0, false, first_head);
      ptx::barrier_sync(kWeightsReady, kConsumerThreads);
      if (first_head > 0) break;
      first_head = kHeadTile;
    }
    store_sums(a, shared, sums, role, batch, query, kHeadTile);
  } else {
    ptx::registers_shrink<kProducerRegisters>();
    ptx::wait_for_previous_kernel();
    const TokenRows rows(a, Lengths(a, batch));
    share_list(a, shared, batch, query, rows, rows.tiles);
    produce_all<true>(a, shared, 0, rows.tiles, [&](bool again) { second_queries(a, shared, batch, query, again); });
  }
}

}  // namespace strata::cuda::sparse_decode
