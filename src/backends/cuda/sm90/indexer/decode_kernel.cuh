// Logits of the lightning indexer on Hopper for few tokens of a request, fp8: memory-bound.
//
// Each block has a part of all tiles of all tokens, in order. A warp fills its ring of tiles by the copy engine (8192 bytes of rows, 256 of
// scales), also beyond the end of a token, so that it does not run empty between requests; two warpgroups take the tiles in turns, with
// the same queries. So many registers and so little shared memory find room beside a block of the product of queries that runs at the same
// time, on every SM; three warpgroups do not.
//
// Floor: 132 bytes a row at 4.3 TB/s: one tile in 450 cycles of an SM, in which the product takes 128 and the epilogue about 120 issue
// slots.
#pragma once

#include "backends/cuda/common/warp.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/sm90/indexer/tile_ring.cuh"
#include "backends/cuda/sm90/indexer/work.cuh"
#include "backends/cuda/smxx/indexer/order_key.cuh"

namespace strata::cuda::sm90 {

struct DecodeArgs {
  LogitsArgs logits;  // parts: the blocks
  int32_t slots;      // of the ring, kDecodeSlots at most
};

using DecodeShared = RingShared<kDecodeSlots>;

// Into L2, while the kernel in front may still run: what the addresses of the first tiles depend on, one after the other. A hint; what is
// written until the kernels in front have ended is seen all the same.
__device__ __forceinline__ void prefetch_addresses(const LogitsArgs& a) {
  constexpr int kLine = 32;  // numbers
  const int64_t first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kLine;
  if (first < a.num_tokens) {
    ptx::prefetch_l2(a.lengths + first);
    ptx::prefetch_l2(a.token_to_req + first);
  }
  if (first < a.table_entries) ptx::prefetch_l2(a.block_table + first);
}

// The tiles of a range, one after the other, as soon as there is room. A warp; a lane looks up a page of each 32 tiles.
__device__ __forceinline__ void load_tiles(const LogitsArgs& a, DecodeShared& s, WorkRange range, int slots) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t policy = ptx::evict_first_policy();  // what stays in L2 is the logits
  int slot = 0, round = 0;
  Tiles tiles;
  while (next_tiles<1>(a, range, tiles)) {
    if (tiles.begin >= tiles.end) continue;
    const int32_t* const table = a.block_table + a.token_to_req[tiles.group] * a.table_stride;
    for (int first = tiles.begin; first < tiles.end; first += 32) {
      const int tile = min(first + lane, tiles.end - 1), block = a.page_tiles.divide(tile), count = min(tiles.end - first, 32);
      const int page = __ldg(table + block), row = (tile - block * a.page_tiles.value()) * kTileRows;
      for (int j = 0; j < count; ++j) {
        const int its_page = __shfl_sync(kAllLanes, page, j), its_row = __shfl_sync(kAllLanes, row, j);
        if (round > 0) ptx::mbarrier_wait(ptx::shared_address(&s.empty[slot]), (round - 1) & 1);
        if (lane == 0) load_tile(a, its_page, its_row, s.rows(slot), s.scales[slot], &s.full[slot], policy);
        if (++slot == slots) {
          slot = 0;
          ++round;
        }
      }
    }
  }
}

// kMaxima: a.maxima gets the largest of each kMaximaRows logits, which are a warp's of a tile.
template <bool kMaxima>
__global__ void __maxnreg__(kDecodeRegisters) indexer_logits_decode_kernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ uint8_t dynamic[];
  auto& s = *reinterpret_cast<DecodeShared*>(dynamic + (1024 - __cvta_generic_to_shared(dynamic) % 1024) % 1024);
  const LogitsArgs& a = args.logits;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, quad = thread % 4;
  const int warpgroup = __shfl_sync(kAllLanes, thread / 128, 0);  // the same in a warp, for the compiler too
  if (thread < args.slots) {
    ptx::mbarrier_init(ptx::shared_address(&s.full[thread]), 1);
    ptx::mbarrier_init(ptx::shared_address(&s.empty[thread]), 4);
  }
  ptx::fence_mbarrier_init();
  if (thread == 0) ptx::prefetch_tensor_map(&a.rows_map);
  prefetch_addresses(a);
  __syncthreads();
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  // Addresses begin with a request: of few tokens all lie in one line, which comes beside the lengths.
  load_line(a.token_to_req);
  WorkRange range = find_work<1>(a, static_cast<int>(blockIdx.x));
  if (warpgroup == kDecodeWarpgroups) return load_tiles(a, s, range, args.slots);

  const int own_row = thread % 128 / 32 * 16 + lane / 4 + 8 * (quad & 1);
  const uint32_t queries = ptx::shared_address(s.queries);
  int slot = warpgroup, before = 0;  // tiles of the tokens in front
  uint32_t parity = 0;
  Tiles tiles;
  while (next_tiles<1>(a, range, tiles)) {
    const int count = tiles.end - tiles.begin;
    if (count <= 0) continue;
    const int64_t token = tiles.group;
    if (before > 0) ptx::barrier_sync(1, kDecodeScorers);  // the queries before have been used
    Scorer<64, 1>::load_queries(a, s.queries, token, thread, kDecodeScorers);
    if (thread < 64) s.weights[thread] = Scorer<64, 1>::weight(a, token, thread);
    ptx::barrier_sync(1, kDecodeScorers);
    Scorer<64, 1> scorer;
    scorer.set_weights([&](int column) { return s.weights[column]; });
    float* const out = a.logits + token * a.logits_stride;
    const int rows = scored_rows(a, token);
    for (int i = (warpgroup + kDecodeWarpgroups - before % kDecodeWarpgroups) % kDecodeWarpgroups; i < count; i += kDecodeWarpgroups) {
      ptx::mbarrier_wait(ptx::shared_address(&s.full[slot]), parity);
      __syncwarp();  // all lanes have seen this turn
      float sums[Scorer<64, 1>::kSums];
      multiply(sums, ptx::shared_address(s.rows(slot)), queries);
      const float scale = ptx::ld_shared_f32(ptx::shared_address(&s.scales[slot][own_row]));
      ptx::wgmma_wait<0>();
      __syncwarp();  // all lanes have their scale
      if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&s.empty[slot]));
      const float logit = scorer.weighted_sum(sums) * scale;
      const int row = (tiles.begin + i) * kTileRows + own_row;
      if (row < rows && quad < 2) out[row] = logit;
      if constexpr (kMaxima) {
        const uint32_t largest = __reduce_max_sync(kAllLanes, row < rows ? order_key(logit) : 0);
        const int group = (tiles.begin + i) * (kTileRows / kMaximaRows) + thread % 128 / 32;
        if (lane == 0 && group * kMaximaRows < rows) a.maxima[token * a.maxima_stride + group] = logit_of(largest);
      }
      slot += kDecodeWarpgroups;
      if (slot >= args.slots) {
        slot -= args.slots;
        parity ^= 1;
      }
    }
    before += count;
  }
}

}  // namespace strata::cuda::sm90
