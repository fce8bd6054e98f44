// Logits of the lightning indexer on Hopper for one token, fp8: a chain of latencies, and a stream of rows.
//
// Tiles of the row are assigned to CTAs round-robin. One warp looks up the pages of a CTA's tiles, one per lane, and loads as many tiles at
// once as fit in shared memory, so that memory is busy from then on. Four warpgroups process the tiles round-robin, all with the same
// queries.
//
// Floor: 132 bytes a row at 4.3 TB/s, after two dependent look-ups. Reached: 2.2 us for 8192 rows, 3.1 for 32768, 10.2 for 262144 (3.4
// TB/s).
#pragma once

#include "backends/cuda/indexer/sm90/candidates.cuh"
#include "backends/cuda/indexer/sm90/tile_ring.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kOneTokenWarpgroups = 4;  // 1 where no CTA has two tiles: small CTAs fit on an SM with others
inline constexpr int kOneTokenSlots = 12;      // tiles of a CTA in flight
inline constexpr int kOneTokenRegisters = 88;  // per thread: leaves room for a CTA of the selection
template <int kWarpgroups, Notes kNotes>
inline constexpr int kOneTokenThreads = 128 * kWarpgroups + (kNotes == Notes::candidates ? 64 : 32);

struct OneTokenArgs {
  LogitsArgs logits;                   // shares: one per CTA
  int32_t num_requests, table_blocks;  // of the block table
  int32_t slots;                       // kOneTokenSlots, or fewer where no CTA has more tiles
  Candidates candidates;               // where they are written
};

// Followed by the rows, then CandidatesShared.
using OneTokenShared = RingShared<kOneTokenSlots>;

__device__ __forceinline__ int row_tile(int i) { return static_cast<int>(blockIdx.x + static_cast<unsigned>(i) * gridDim.x); }

// Loads the tiles of a CTA, count_of() of them. By one warp. Page numbers are looked up concurrently with the length.
template <class Count>
__device__ __forceinline__ void load_tiles(const OneTokenArgs& args, OneTokenShared& s, Count&& count_of) {
  const LogitsArgs& a = args.logits;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int request = args.num_requests == 1 ? 0 : a.token_to_req[0];  // of a token without rows it may be any number
  const int blocks = request >= 0 && request < args.num_requests ? args.table_blocks : 0;
  const int32_t* const table = a.block_table + request * a.table_stride;
  RingFiller filler(a, s, args.slots);
  int count = 0;
  for (int first = 0; first == 0 || first < count; first += 32) {
    const int tile = row_tile(first + lane), block = a.page_tiles.divide(tile);
    const int page = static_cast<int>(ptx::ld_if(block < blocks, table + block, 0));
    if (first == 0) count = count_of();
    filler.add(min(count - first, 32), page, (tile - block * a.page_tiles.value()) * kTileRows);
  }
}

// kNotes: what is written for the selection in addition to the logits; maxima of the row. Candidates need one more warp.
template <int kWarpgroups, Notes kNotes>
__global__ void __maxnreg__(kOneTokenRegisters) indexer_logits_one_token_kernel(const __grid_constant__ OneTokenArgs args) {
  constexpr int kScorers = 128 * kWarpgroups;  // threads
  extern __shared__ uint8_t dynamic[];
  auto& s = *reinterpret_cast<OneTokenShared*>(dynamic + (1024 - __cvta_generic_to_shared(dynamic) % 1024) % 1024);
  const LogitsArgs& a = args.logits;
  auto& listed = *reinterpret_cast<CandidatesShared*>(s.rows(args.slots));
  const int thread = static_cast<int>(threadIdx.x);
  const int warpgroup = __shfl_sync(kAllLanes, thread / 128, 0);  // warp-uniform, also for the compiler
  if constexpr (kNotes == Notes::candidates) {
    if (thread < kCandidateTiles) ptx::mbarrier_init(ptx::shared_address(&listed.scored[thread]), kTileRows);
  }
  prepare_ring(a, s, args.slots);
  // Prefetches what addresses depend on to L2.
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
    return a.num_shares.divide((n + kTileRows - 1) / kTileRows + static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x));
  };
  if (warpgroup == kWarpgroups) {
    if constexpr (kNotes == Notes::candidates) {
      if (thread >= kScorers + 32) {
        const int length = row_length();
        if (length <= kFewRowsEntries) return;
        return list_candidates(listed, own_tiles(length), a.skip / static_cast<int>(gridDim.x), args.candidates);
      }
    }
    return load_tiles(args, s, [&] { return own_tiles(row_length()); });
  }

  int n, count;
  const Scorer<64, 1> scorer = load_token<kScorers>(a, s, 0, [&] {
    n = row_length();
    count = own_tiles(n);
  });
  RingConsumer<kWarpgroups, OneTokenShared> ring(s, args.slots, warpgroup);
  const int own_row = ring.own_row();
  for (int i = warpgroup; i < count; i += kWarpgroups) {
    const float logit = ring.score(scorer);
    const int tile = row_tile(i), row = tile * kTileRows + own_row;
    const bool stores = threadIdx.x % 4 < 2;
    if (row < n && stores) a.logits[row] = logit;
    if constexpr (kNotes == Notes::candidates) {
      if (stores && n > kFewRowsEntries) {
        listed.keys[i][own_row] = row < n ? order_key(logit) : 0;
        ptx::mbarrier_arrive(ptx::shared_address(&listed.scored[i]));
      }
    }
    if constexpr (kNotes == Notes::maxima) {
      if (n > a.maxima_from) note_maximum(a.maxima, tile, row, n, logit);
    }
  }
}

}  // namespace strata::cuda::sm90
