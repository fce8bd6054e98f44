// Logits of the lightning indexer on Hopper for several tokens of a request, fp8.
//
// Four warpgroups score the same tiles for two tokens each (one with more than 64 heads). Where a request has few tokens, they process
// tiles alternately (token_tiles.h). One more warp loads the tiles into a ring in shared memory by TMA, across the ends of runs. Both
// operands of the products are read from there: a thread has registers for the sums, the weights and little else, and the loop has only
// products and epilogues.
//
// 64 heads x 128, a cycle of an SM: the product of a tile for two tokens takes 64 * 128 * 128 * 2 / 8192 = 256 cycles, for which shared
// memory delivers 96 of its 128 bytes a cycle; the epilogue 64 maxima and 64 fused multiply-adds a thread, with shuffles and barriers about
// 190 issue slots of each of the four schedulers.
// Floor: 2 * 64 * 128 flops per (token, row) at about 1.6 PFLOP/s of fp8 in practice. Reached on an H200: 1.12 PFLOP/s for 8192 tokens and
// 65536 rows, 1.17 for 4096 and 16384.
#pragma once

#include "backends/cuda/device/pipeline_state.cuh"
#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/indexer/sm90/runs.cuh"
#include "backends/cuda/indexer/sm90/scorer.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kPrefillThreads = 128 * (kPrefillWarpgroups + 1);
// Threads start with 96 registers, the most for this many threads.
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

template <int kHeads, int kTokens>
__device__ __forceinline__ void load_tiles(const LogitsArgs& a, PrefillShared<kHeads, kTokens>& s, const WorkRange& range) {
  PipelineState<kPrefillSlots> stage;
  for_each_run<kTokens>(a, range, [&](const Run& run) {
    if (threadIdx.x % 32 == 0) {
      const int32_t* const table = a.block_table + run.request * a.table_stride;
      const int last = a.page_tiles.divide(run.end - 1);
      int block = a.page_tiles.divide(run.begin), row = (run.begin - block * a.page_tiles.value()) * kTileRows;
      int page = __ldg(table + block), next = __ldg(table + min(block + 1, last));
      for (int tile = run.begin; tile < run.end; ++tile) {
        ptx::mbarrier_wait(ptx::shared_address(&s.empty[stage.index]), stage.parity ^ 1);
        load_tile(a, page, row, s.rows[stage.index], s.scales[stage.index], &s.full[stage.index]);
        stage.next();
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
      ptx::mbarrier_init(ptx::shared_address(&s.empty[i]), 4 * kPrefillWarpgroups * kWarpArrivals);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  constexpr int kGroup = kGroupOf<kTokens>;
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);  // warp-uniform, also for the compiler
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
  const int own_token = kTokens == 2 ? quad / 2 : 0;  // of its token tile, which this thread writes
  const bool writes = kTokens == 2 || quad < 2;
  const uint32_t queries = ptx::shared_address(s.queries[warpgroup]);
  PipelineState<kPrefillSlots> stage;
  const auto wait_for_tile = [&] { ptx::mbarrier_wait(ptx::shared_address(&s.full[stage.index]), stage.parity); };
  const auto leave_tile = [&] {
    __syncwarp();  // all lanes have seen this phase, or have their scale
    if (arrives(lane)) ptx::mbarrier_arrive(ptx::shared_address(&s.empty[stage.index]));
  };
  const auto keep_up = [&](int tiles) {
    for (; tiles > 0; --tiles, stage.next()) wait_for_tile(), leave_tile();
  };
  int64_t held = -1;  // the first token whose queries are loaded
  for_each_run<kTokens>(a, range, [&](const Run& run) {
    const int token_tiles = num_token_tiles(run.count, kTokens), copies = copies_of(token_tiles), copy = copy_of(warpgroup, token_tiles);
    const int token_offset = run.first + (warpgroup - copy * token_tiles) * kTokens;
    int left = run.end - run.begin;
    if (copy >= min(copies, left)) return keep_up(left);
    const int64_t token = run.group * kGroup + token_offset;
    if (token != held) {
      held = token;
      warpgroup_sync(warpgroup);  // the previous queries have been used
      scorer.load_queries(a, s.queries[warpgroup], token, threadIdx.x % 128, 128);
      scorer.set_weights([&](int column) { return scorer.weight(a, token, column); });
      warpgroup_sync(warpgroup);
    }
    const int own = token_offset + own_token;
    int rows = __shfl_sync(kAllLanes, run.own_rows, own);
    if (!writes || own >= run.first + run.count) rows = 0;
    int row = (run.begin + copy) * kTileRows + own_row;
    float* target = a.logits + (run.group * kGroup + own) * a.logits_stride + row;
    const auto score = [&](int next) {
      wait_for_tile();
      float sums[Scorer<kHeads, kTokens>::kSums];
      multiply(sums, ptx::shared_address(s.rows[stage.index]), queries);
      const float scale = s.scales[stage.index][own_row];
      ptx::wgmma_wait<0>();
      leave_tile();
      const float logit = scorer.weighted_sum(sums) * scale;
      if (row < rows) *target = logit;
      row += next * kTileRows;
      target += next * kTileRows;
      stage.next();
    };
    if (copies == 1) {  // a separate loop: counting the others' tiles costs 4 %
      for (; left > 0; --left) score(1);
      return;
    }
    keep_up(copy);
    for (left -= copy; left > 0; left -= copies) {
      score(copies);
      keep_up(min(copies, left) - 1);
    }
  });
}

}  // namespace strata::cuda::sm90
