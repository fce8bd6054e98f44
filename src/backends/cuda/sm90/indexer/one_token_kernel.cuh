// Logits of the lightning indexer on Hopper for one token, fp8: a chain of latencies, and a stream of rows.
//
// Blocks have tiles of the row in turn. A warp looks up the pages of a block's tiles, a lane for each, and asks for as many at once as
// shared memory has room for, so that the memory is busy from then on; four warpgroups take them in turn, all with the same queries.
//
// Floor: 132 bytes a row at 4.3 TB/s, behind two look-ups, one after the other. Reached: 2.2 us for 8192 rows, 3.1 for 32768, 10.2 for
// 262144 (3.4 TB/s).
#pragma once

#include "backends/cuda/common/warp.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/sm90/indexer/candidates.cuh"
#include "backends/cuda/sm90/indexer/tile_ring.cuh"
#include "backends/cuda/smxx/indexer/indexer.h"
#include "backends/cuda/smxx/indexer/order_key.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kOneTokenWarpgroups = 4;  // one where no block has two tiles: small blocks find room beside others
inline constexpr int kOneTokenSlots = 12;      // tiles of a block in flight
inline constexpr int kOneTokenRegisters = 88;  // a thread: beside them there is room for a block of the selection
template <int kWarpgroups, Notes kNotes>
inline constexpr int kOneTokenThreads = 128 * kWarpgroups + (kNotes == Notes::candidates ? 64 : 32);

struct OneTokenArgs {
  LogitsArgs logits;                   // parts: the blocks
  int32_t num_requests, table_blocks;  // of the block table
  int32_t slots;                       // kOneTokenSlots, or fewer where no block has more tiles
  Candidates candidates;               // where they are left
};

// Behind it the rows, then CandidatesShared.
using OneTokenShared = RingShared<kOneTokenSlots>;

__device__ __forceinline__ int row_tile(int i) { return static_cast<int>(blockIdx.x + static_cast<unsigned>(i) * gridDim.x); }

// The tiles of a block, count_of() of them, as soon as there is room. A warp. Page numbers are looked up beside the length.
template <class Count>
__device__ __forceinline__ void load_tiles(const OneTokenArgs& args, OneTokenShared& s, Count&& count_of) {
  const LogitsArgs& a = args.logits;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int request = args.num_requests == 1 ? 0 : a.token_to_req[0];  // of a token without rows it may be anything
  const int blocks = request >= 0 && request < args.num_requests ? args.table_blocks : 0;
  const int32_t* const table = a.block_table + request * a.table_stride;
  const uint64_t policy = ptx::evict_first_policy();  // what stays in L2 is the logits
  int count = 0, slot = 0, round = 0;
  for (int first = 0; first == 0 || first < count; first += 32) {
    const int tile = row_tile(first + lane), block = a.page_tiles.divide(tile);
    const int page = static_cast<int>(ptx::ld_if(block < blocks, table + block, 0));
    if (first == 0) count = count_of();
    const int row = (tile - block * a.page_tiles.value()) * kTileRows, end = min(count - first, 32);
    for (int j = 0; j < end; ++j) {
      const int its_page = __shfl_sync(kAllLanes, page, j), its_row = __shfl_sync(kAllLanes, row, j);
      if (round > 0) ptx::mbarrier_wait(ptx::shared_address(&s.empty[slot]), (round - 1) & 1);
      if (lane == 0) load_tile(a, its_page, its_row, s.rows(slot), s.scales[slot], &s.full[slot], policy);
      if (++slot == args.slots) {
        slot = 0;
        ++round;
      }
    }
  }
}

// kNotes: what is left for the selection beside the logits; maxima as in decode_kernel.cuh. Candidates take another warp.
template <int kWarpgroups, Notes kNotes>
__global__ void __maxnreg__(kOneTokenRegisters) indexer_logits_one_token_kernel(const __grid_constant__ OneTokenArgs args) {
  constexpr int kScorers = 128 * kWarpgroups;  // threads
  extern __shared__ uint8_t dynamic[];
  auto& s = *reinterpret_cast<OneTokenShared*>(dynamic + (1024 - __cvta_generic_to_shared(dynamic) % 1024) % 1024);
  const LogitsArgs& a = args.logits;
  auto& listed = *reinterpret_cast<CandidatesShared*>(s.rows(args.slots));
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, quad = thread % 4;
  const int warpgroup = __shfl_sync(kAllLanes, thread / 128, 0);  // the same in a warp, for the compiler too
  if (thread < args.slots) {
    ptx::mbarrier_init(ptx::shared_address(&s.full[thread]), 1);
    ptx::mbarrier_init(ptx::shared_address(&s.empty[thread]), 4);
  }
  if constexpr (kNotes == Notes::candidates) {
    if (thread < kCandidateTiles) ptx::mbarrier_init(ptx::shared_address(&listed.scored[thread]), kTileRows);
  }
  ptx::fence_mbarrier_init();
  if (thread == 0) ptx::prefetch_tensor_map(&a.rows_map);
  // A hint: what addresses depend on, into L2.
  constexpr int kLine = 32;
  if (blockIdx.x == 0 && thread == 0) ptx::prefetch_l2(a.lengths);
  if (blockIdx.x == 1 && thread == 0) ptx::prefetch_l2(a.token_to_req);
  if (const int64_t entry = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kLine; entry < a.table_entries)
    ptx::prefetch_l2(a.block_table + entry);
  __syncthreads();
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();

  const auto row_length = [&] {
    const int length = a.lengths[0];
    return length > a.skip ? length : 0;
  };
  const auto own_tiles = [&](int n) {
    return a.parts.divide((n + kTileRows - 1) / kTileRows + static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x));
  };
  if (warpgroup == kWarpgroups) {
    if constexpr (kNotes == Notes::candidates) {
      if (thread >= kScorers + 32) {
        return list_candidates(listed, own_tiles(row_length()), a.skip / static_cast<int>(gridDim.x), args.candidates);
      }
    }
    return load_tiles(args, s, [&] { return own_tiles(row_length()); });
  }

  Scorer<64, 1>::load_queries(a, s.queries, 0, thread, kScorers);
  if (thread < 64) s.weights[thread] = Scorer<64, 1>::weight(a, 0, thread);
  const int n = row_length(), count = own_tiles(n);
  ptx::barrier_sync(1, kScorers);
  Scorer<64, 1> scorer;
  scorer.set_weights([&](int column) { return s.weights[column]; });

  const int own_row = thread % 128 / 32 * 16 + lane / 4 + 8 * (quad & 1);
  const uint32_t queries = ptx::shared_address(s.queries);
  int slot = warpgroup;
  uint32_t parity = 0;
  for (int i = warpgroup; i < count; i += kWarpgroups) {
    ptx::mbarrier_wait(ptx::shared_address(&s.full[slot]), parity);
    __syncwarp();  // all lanes have seen this turn
    float sums[Scorer<64, 1>::kSums];
    multiply(sums, ptx::shared_address(s.rows(slot)), queries);
    const float scale = ptx::ld_shared_f32(ptx::shared_address(&s.scales[slot][own_row]));
    ptx::wgmma_wait<0>();
    __syncwarp();  // all lanes have their scale
    if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&s.empty[slot]));
    const float logit = scorer.weighted_sum(sums) * scale;
    const int row = row_tile(i) * kTileRows + own_row;
    if (row < n && quad < 2) a.logits[row] = logit;
    if constexpr (kNotes == Notes::candidates) {
      if (quad < 2) {
        listed.keys[i][own_row] = row < n ? order_key(logit) : 0;
        ptx::mbarrier_arrive(ptx::shared_address(&listed.scored[i]));
      }
    }
    if constexpr (kNotes == Notes::maxima) {
      const uint32_t largest = __reduce_max_sync(kAllLanes, row < n ? order_key(logit) : 0);
      const int group = row_tile(i) * (kTileRows / kMaximaRows) + thread % 128 / 32;
      if (lane == 0 && group * kMaximaRows < n) a.maxima[group] = logit_of(largest);
    }
    slot += kWarpgroups;
    if (slot >= args.slots) {
      slot -= args.slots;
      parity ^= 1;
    }
  }
}

}  // namespace strata::cuda::sm90
