// Sparse decode of 65 to 128 heads over at most two tiles of rows (a window alone) on Hopper: one block has a token, and its two tiles of
// 64 heads take turns over the same rows, which are converted once and stay in the two stages. The producers bring the second turn's
// queries as soon as the first turn's logits are done with theirs.
//
// Floor of 128 tokens: queries, rows and results, 43 MB, 10 us of memory; a block has four tiles of 2048 cycles on the tensor cores, 4.7
// us. Reached on an H200 (2026-11-23): 20.8 us; blocks of 64 heads took 26.1 when turns took 22.3.
#pragma once

#include "backends/cuda/common/warpgroup.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/sm90/sparse_decode/kernel.cuh"

namespace strata::cuda::sparse_decode {

// What a producing warp has for itself, when its rows are loaded: so many of the second turn's queries until the first turn's are done
// with.
inline constexpr int kHeadsAside = 3;

template <KvFormat kFormat>
struct HeadTurnsShared : SharedMemory<kFormat, kHeadTile, kHeadsAside * 2 * kRowLanes<kFormat>> {
  static constexpr RegisterRoom kRoom = {192, 64, 0, 6};
  uint64_t queries_free;   // the first turn's logits are done
  uint64_t queries_ready;  // the second turn's
  uint64_t produced;       // all tiles, and it is known whether a value did not fit
};

// A warp's arrival.
__device__ __forceinline__ void arrive(uint64_t& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
}

// The second turn's queries, by the producers: made ready while the first turn's logits need the place of theirs, as many as registers hold
// and the others aside. `again`: the first turn has started over.
template <class Shared>
__device__ __forceinline__ void second_queries(const DecodeArgs& a, Shared& shared, int32_t batch, int32_t query, bool again) {
  using Place = QueryPlace<Shared>;
  constexpr int kAside = kHeadsAside, kHeld = Place::kWarpHeads - kAside;
  static_assert(Place::kUnits % 32 == 0);
  const int lane = threadIdx.x % 32, first = Place::first_head();
  const uint32_t aside = ptx::shared_address(shared.of_warp[(threadIdx.x - kConsumerThreads) / 32]) + 16 * lane;
  const uint16_t* const q = a.q + batch * a.q_batch_stride + query * a.q_query_stride + (kHeadTile + first) * a.q_head_stride + 8 * lane;
#pragma unroll
  for (int i = 0; i < kAside * Place::kLoads; ++i) {
    const int head = i / Place::kLoads;
    ptx::cp_async_16_or_zero(aside + 512 * i, q + head * a.q_head_stride + i % Place::kLoads * 256,
                             kHeadTile + first + head < a.num_heads ? 16 : 0);
  }
  ptx::cp_async_commit();
  Queries<true, Shared, kHeld> held(a, batch, query, kHeadTile, kAside);
  const AsTheyAre normed(a, batch * a.num_queries + query);
  ptx::cp_async_wait<0>();
  int exponent_of_lane = 0;
#pragma unroll
  for (int head = 0; head < kAside; ++head) {
    uint4 v[1][Place::kLoads];
    int exponent[1];
#pragma unroll
    for (int i = 0; i < Place::kLoads; ++i) v[0][i] = ptx::ld_shared(aside + 512 * (head * Place::kLoads + i));
    convert_heads<Shared>(normed, v, exponent);
#pragma unroll
    for (int i = 0; i < Place::kLoads; ++i) ptx::st_shared(aside + 512 * (head * Place::kLoads + i), v[0][i]);
    if (lane == head) exponent_of_lane = exponent[0];
  }
  int exponent[kHeld];
  convert_heads<Shared>(normed, held.v, exponent);
#pragma unroll
  for (int head = 0; head < kHeld; ++head) {
    if (lane == kAside + head) exponent_of_lane = exponent[head];
  }
  ptx::mbarrier_wait(ptx::shared_address(&shared.queries_free), again);
  held.store(shared);
#pragma unroll
  for (int i = 0; i < kAside * Place::kLoads; ++i) {
    const uint4 v = ptx::ld_shared(aside + 512 * i);
    ptx::st_shared(Place::address(shared, first + i / Place::kLoads, lane + i % Place::kLoads * 32), v);
  }
  if (lane < Place::kWarpHeads) shared.q_scale[first + lane] = pow2(exponent_of_lane);
  ptx::fence_proxy_async();
  arrive(shared.queries_ready);
}

// A consumer's sums of its block of heads to `out`, 32 lanes at a time through the weights' place, which no product needs: the stages hold
// keys that the next turn needs.
template <class Shared>
__device__ __forceinline__ void store_sums(const DecodeArgs& a, Shared& shared, Sums& sums, float2 factors, int half, int32_t batch,
                                           int32_t query, int32_t first_head) {
  constexpr int kLanes = 32, kUnits = kLanes / 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  scale_rows(sums, factors.x, factors.y);
  const uint32_t buffer = ptx::shared_address(shared.p) + warp * 16 * kLanes * 2;
  // No bank twice.
  const auto place = [&](int of_row, int unit) { return buffer + of_row * kLanes * 2 + ((unit ^ of_row / 2 % kUnits) << 4); };
  const int32_t first = first_head + warp % 4 * 16 + lane / kUnits;
  uint16_t* const target = a.out + batch * a.out_batch_stride + query * a.out_query_stride + first * a.out_head_stride +
                           half * (kValueDim / 2) + lane % kUnits * 8;
#pragma unroll
  for (int i = 0; i < kValueDim / 2 / kLanes; ++i) {
    const float* const v = &sums[i / 4][i % 4 * 16];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      ptx::stmatrix_x4(place(lane % 16, 2 * j + lane / 16), ptx::cvt_bf16x2(v[8 * j], v[8 * j + 1]),
                       ptx::cvt_bf16x2(v[8 * j + 2], v[8 * j + 3]), ptx::cvt_bf16x2(v[8 * j + 4], v[8 * j + 5]),
                       ptx::cvt_bf16x2(v[8 * j + 6], v[8 * j + 7]));
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 16; r += 8) {
      uint4 eight = ptx::ld_shared(place(r + lane / kUnits, lane % kUnits));
      if (constexpr int kFirstRotated = (kValueDim / 2 - kRotaryLanes) / kLanes;
          i >= kFirstRotated && half == 1 && a.positions != nullptr) {
        eight = rotate_back(eight, shared.rotation + (i - kFirstRotated) * kLanes / 2 + lane % kUnits * 4);
      }
      if (first + r < a.num_heads) ptx::st_global(target + r * a.out_head_stride + i * kLanes, eight);
    }
    __syncwarp();
  }
}

// Rows of the caches, of q and of out start at multiples of 16 bytes.
template <KvFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1) sparse_decode_head_turns_kernel(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  using Shared = HeadTurnsShared<kFormat>;
  auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int32_t token = static_cast<int32_t>(blockIdx.x), batch = divide(token, a.num_queries), query = token - batch * a.num_queries;

  ptx::launch_dependents();
  if (threadIdx.x == 0) {
    constexpr int kWarps = kConsumerThreads / 32;  // of either role
    static_assert(kConsumerThreads == kProducerThreads);
    for (const uint64_t* barrier : {&shared.queries_free, &shared.queries_ready, &shared.produced}) {
      ptx::mbarrier_init(ptx::shared_address(barrier), kWarps);
    }
  }
  prepare(shared);
  __syncthreads();
  bring_near<Shared>(a, Seat<Cut::even>(token, batch, query));

  const int role = own_warpgroup();
  uint32_t phases = 0;
  bool again = false;
  const auto must_start_over = [&] {
    ptx::mbarrier_wait(ptx::shared_address(&shared.produced), again);
    return !again && shared.overflow != 0;
  };
  if (role < 2) {
    AsTheyAre normed(a, token);
    ptx::wait_for_previous_kernel();
    const Lengths lengths(a, batch);
    load_queries<true>(a, shared, batch, query, 0, normed);
    bring_queries_near<Shared>(a, batch, query, kHeadTile);
    const int32_t tiles = TokenRows(a, lengths).tiles;
    ptx::registers_grow<Shared::kRoom.consumer>();
    const auto logits_done = [&] { arrive(shared.queries_free); };
    Sums sums;
#pragma unroll 1
    for (int32_t first_head = 0; first_head <= kHeadTile;) {
      if (first_head > 0) {
        ptx::barrier_sync(kQueryReady, kConsumerThreads);  // the weights' place is free
        ptx::mbarrier_wait(ptx::shared_address(&shared.queries_ready), 0);
      }
      const float unshift = pow2(-shared.key_shift), scale = a.scale_log2 * unshift;
      const float2 factor = {scale * shared.q_scale[accumulator_row()], scale * shared.q_scale[accumulator_row() + 8]};
      SoftmaxState state;
      clear(sums);
      if (role >= tiles) logits_done();
      consume(shared, role, tiles, phases, factor, state, sums, logits_done);
      const float2 sinks = load_sinks(a, first_head);
      give_end(shared, role, state);
      if (must_start_over()) {
        __syncthreads();  // the producers find the shift between the two
        again = true;
        phases = phases_behind(phases, tiles);
        __syncthreads();
        continue;
      }
      ptx::barrier_sync(kQueryReady, kConsumerThreads);  // no weights are needed any more, and ends are there
      const float2 factors = finish_softmax(a, shared, role, state, sinks, unshift, token, false, first_head, [](auto...) {});
      store_sums(a, shared, sums, factors, role, batch, query, first_head);
      first_head += kHeadTile;
    }
  } else {
    ptx::registers_shrink<Shared::kRoom.producer>();
    ptx::wait_for_previous_kernel();
    const TokenRows rows(a, Lengths(a, batch));
    share_list(a, shared, batch, query, rows, rows.tiles);
    for (;; again = true) {
      produce<true>(a, shared, 0, rows.tiles, phases, pow2(shared.key_shift), Slots(shared.list, 0));
      phases = phases_behind(phases, rows.tiles);
      if (threadIdx.x / 32 == kConsumerThreads / 32) load_rotation(a, shared.token, shared.rotation);
      arrive(shared.produced);
      if (!must_start_over()) break;
      __syncthreads();
      atomicMin(&shared.key_shift, fitting_key_shift<kFormat>(a, shared.list, 0));
      __syncthreads();
    }
    second_queries(a, shared, batch, query, again);
  }
}

}  // namespace strata::cuda::sparse_decode
