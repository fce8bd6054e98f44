// Logits of the lightning indexer on Hopper for several tokens of a request, fp8.
//
// Four warpgroups score the same tiles for two tokens each (one of more than 64 heads). A warp beside them has the copy engine bring the
// tiles into a ring in shared memory, over the ends of tokens, and both operands of the products are read from there: a thread has
// registers for the sums, the weights and little else, and the loop does nothing but products and epilogues.
//
// 64 heads x 128, a cycle of an SM: the product of a tile for two tokens takes 64 * 128 * 128 * 2 / 8192 = 256 cycles, for which shared
// memory delivers 96 of its 128 bytes a cycle; the epilogue 64 maxima and 64 fused multiply-adds a thread, with shuffles and barriers about
// 190 issue slots of each of the four schedulers.
// Floor: 2 * 64 * 128 flops per (token, row) at about 1.6 PFLOP/s of fp8 in practice. Reached on an H200: 1.12 PFLOP/s for 8192 tokens and
// 65536 rows, 1.17 for 4096 and 16384.
#pragma once

#include "backends/cuda/common/ring.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/sm90/indexer/scorer.cuh"
#include "backends/cuda/sm90/indexer/work.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kPrefillThreads = 128 * (kPrefillWarpgroups + 1);
// Of 96 registers a thread to start with, which is what so many threads may have.
inline constexpr int kScorerRegisters = 112, kLoaderRegisters = 32;

template <int kHeads, int kTokens>
struct alignas(1024) PrefillShared {
  uint8_t queries[kPrefillWarpgroups][Scorer<kHeads, kTokens>::kQueryBytes];
  uint8_t rows[kPrefillSlots][kRowBytes];
  float scales[kPrefillSlots][kTileRows];
  uint64_t full[kPrefillSlots], empty[kPrefillSlots];
  WorkSearch search;
  WorkRange range;
};

// f(tiles, request, tokens, rows) for the tokens of each request in each group of a range: `tokens` has a bit for each, `rows` is the
// number of rows of this lane's token.
template <int kGroup, class F>
__device__ __forceinline__ void for_each_run(const LogitsArgs& a, WorkRange range, F&& f) {
  const int lane = threadIdx.x % 32;
  for (Tiles tiles; next_tiles<kGroup>(a, range, tiles);) {
    const int64_t token = tiles.group * kGroup + lane;
    const int rows = lane < kGroup ? scored_rows(a, token) : 0;
    const int request = rows > 0 ? a.token_to_req[token] : -1;
    for (uint32_t left = __ballot_sync(kAllLanes, rows > 0); left != 0;) {
      const int own = __shfl_sync(kAllLanes, request, __ffs(static_cast<int>(left)) - 1);
      const uint32_t tokens = __ballot_sync(kAllLanes, request == own);
      left &= ~tokens;
      const int longest = __reduce_max_sync(kAllLanes, request == own ? rows : 0);
      Tiles run = tiles;
      run.end = min(run.end, (longest - 1) / kTileRows + 1);
      if (run.begin < run.end) f(run, own, tokens, rows);
    }
  }
}

template <int kHeads, int kTokens>
__device__ __forceinline__ void load_tiles(const LogitsArgs& a, PrefillShared<kHeads, kTokens>& s, const WorkRange& range) {
  Turn<kPrefillSlots> place;
  for_each_run<kTokens * kPrefillWarpgroups>(a, range, [&](const Tiles& tiles, int request, uint32_t, int) {
    if (threadIdx.x % 32 == 0) {
      const int32_t* const table = a.block_table + request * a.table_stride;
      const int last = a.page_tiles.divide(tiles.end - 1);
      int block = a.page_tiles.divide(tiles.begin), row = (tiles.begin - block * a.page_tiles.value()) * kTileRows;
      int page = __ldg(table + block), next = __ldg(table + min(block + 1, last));
      for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        ptx::mbarrier_wait(ptx::shared_address(&s.empty[place.index]), place.parity ^ 1);
        load_tile(a, page, row, s.rows[place.index], s.scales[place.index], &s.full[place.index]);
        place.next();
        row += kTileRows;
        if (row == a.page_tiles.value() * kTileRows) {
          row = 0;
          page = next;
          ++block;
          next = __ldg(table + min(block + 1, last));
        }
      }
    }
    __syncwarp();
  });
}

template <int kHeads, int kTokens>
__global__ void __launch_bounds__(kPrefillThreads, 1) indexer_logits_prefill_kernel(const __grid_constant__ LogitsArgs a) {
  using Shared = PrefillShared<kHeads, kTokens>;
  extern __shared__ uint8_t dynamic[];
  auto& s = *reinterpret_cast<Shared*>(dynamic + (1024 - __cvta_generic_to_shared(dynamic) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPrefillSlots; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&s.full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&s.empty[i]), 4 * kPrefillWarpgroups);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  constexpr int kGroup = kTokens * kPrefillWarpgroups;
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);  // the same in a warp, for the compiler too
  if (warpgroup == 0) {
    find_work<kGroup>(a, s.search, static_cast<int>(blockIdx.x), s.range);
  } else {
    __syncthreads();
  }
  __syncthreads();
  const WorkRange range = s.range;
  if (warpgroup == kPrefillWarpgroups) {
    ptx::registers_shrink<kLoaderRegisters>();
    if (threadIdx.x < 128 * kPrefillWarpgroups + 32) load_tiles(a, s, range);
    return;
  }
  ptx::registers_grow<kScorerRegisters>();
  Scorer<kHeads, kTokens> scorer;
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const int own_row = threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * (quad & 1);
  const int own = warpgroup * kTokens + (kTokens == 2 ? quad / 2 : 0);  // the token that this thread writes
  const bool writes = kTokens == 2 || quad < 2;
  const uint32_t queries = ptx::shared_address(s.queries[warpgroup]);
  Turn<kPrefillSlots> place;
  int64_t group = -1;
  for_each_run<kGroup>(a, range, [&](const Tiles& tiles, int, uint32_t tokens, int lane_rows) {
    if (tiles.group != group) {
      group = tiles.group;
      warpgroup_sync(warpgroup);  // the queries before have been used
      const int64_t token = group * kGroup + warpgroup * kTokens;
      scorer.load_queries(a, s.queries[warpgroup], token, threadIdx.x % 128, 128);
      scorer.set_weights([&](int column) { return scorer.weight(a, token, column); });
      warpgroup_sync(warpgroup);
    }
    if ((tokens >> (warpgroup * kTokens) & ((1u << kTokens) - 1)) == 0) {  // nothing to do but to keep up
      for (int left = tiles.end - tiles.begin; left > 0; --left, place.next()) {
        ptx::mbarrier_wait(ptx::shared_address(&s.full[place.index]), place.parity);
        __syncwarp();  // all lanes have seen this turn
        if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&s.empty[place.index]));
      }
      return;
    }
    int rows = __shfl_sync(kAllLanes, lane_rows, own);
    if (!writes || (tokens >> own & 1) == 0) rows = 0;
    int row = tiles.begin * kTileRows + own_row;
    float* target = a.logits + (group * kGroup + own) * a.logits_stride + row;
    for (int left = tiles.end - tiles.begin; left > 0; --left) {
      ptx::mbarrier_wait(ptx::shared_address(&s.full[place.index]), place.parity);
      float sums[Scorer<kHeads, kTokens>::kSums];
      multiply(sums, ptx::shared_address(s.rows[place.index]), queries);
      const float scale = s.scales[place.index][own_row];
      ptx::wgmma_wait<0>();
      __syncwarp();  // all lanes have their scale
      if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&s.empty[place.index]));
      const float logit = scorer.weighted_sum(sums) * scale;
      if (row < rows) *target = logit;
      row += kTileRows;
      target += kTileRows;
      place.next();
    }
  });
}

}  // namespace strata::cuda::sm90
