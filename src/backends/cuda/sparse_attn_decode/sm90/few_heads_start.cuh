// The start of the decode kernel for few heads.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/early_start.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_loader.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// A loading warp's work. Lengths, indices and rows are a chain of three misses. So the warp loads indices as if every entry were inside its
// length, before the preceding kernel has finished, when lengths and indices may still change. With these it prefetches the first tile's
// rows to L2. Once the preceding kernel has finished, it copies that tile from the speculative addresses while it loads lengths and indices
// again. A CTA that starts after the preceding kernel's end skips the prefetch: a consumer, which has less to do, has noticed the end by
// then. The first indices are loaded before the CTA's first barrier. Registers are released after that barrier, because the release waits
// for these loads.
template <int kRegisters, class Shared, Cut kCut>
__device__ __forceinline__ void load_block(const DecodeArgs& a, Shared& shared, const CtaWork<kCut>& work, int warp, int lane) {
  const auto start = [&](Rows<Shared::kFormat>& loaded, const TokenRows& rows, const BlockTiles& tiles) {
    loaded.start(RowList(a, work.batch, work.query, rows, tiles.end), tiles.first);
  };
  TokenRows rows = work.expected(a);
  BlockTiles tiles = work.tiles(rows);
  Rows<Shared::kFormat> loaded(a, warp, lane);
  if (rows.total > 0) start(loaded, rows, tiles);
  meet<Shared>();
  ptx::registers_shrink<kRegisters>();
  if (rows.total == 0) return;
  if (!ptx::mbarrier_test(ptx::shared_address(&shared.previous_ended), 0)) loaded.prefetch(lane);
  const int32_t predicted_slot = loaded.even;
  loaded.address = loaded.address_of(predicted_slot);
  ptx::wait_for_previous_kernel();
  const int32_t length = Lengths::load_lane(lane, a, work.batch);
  start(loaded, rows, tiles);
  load_rows(shared, loaded, 0, 1, blockIdx.y * gridDim.x + blockIdx.x, warp, lane, [&](int32_t& num_tiles) {
    const Lengths lengths(length);
    const bool as_predicted = rows.are_of(a, lengths);
    if (!as_predicted) rows = work.rows(a, lengths), tiles = work.tiles(rows);
    num_tiles = max(tiles.end - tiles.first, 0);
    if (!as_predicted && num_tiles > 0) start(loaded, rows, tiles);
    return as_predicted && num_tiles > 0 && __all_sync(~0u, loaded.even == predicted_slot);
  });
}

// The same for a work item of a schedule, whose rows are known from the start: only indices are speculative.
template <int kRegisters, class Shared>
__device__ __forceinline__ void load_block(const DecodeArgs& a, Shared& shared, const CtaWork<Cut::scheduled>& work, int warp, int lane) {
  Rows<Shared::kFormat> loaded(a, warp, lane);
  int32_t num_tiles;
  {
    const TokenRows rows = work.expected(a);
    const BlockTiles tiles = work.tiles(rows);
    num_tiles = tiles.end - tiles.first;
    if (num_tiles > 0) loaded.start(RowList(a, work.batch, work.query, rows, tiles.end), tiles.first);
  }
  meet<Shared>();
  ptx::registers_shrink<kRegisters>();
  if (num_tiles == 0) return;
  if (!ptx::mbarrier_test(ptx::shared_address(&shared.previous_ended), 0)) loaded.prefetch(lane);
  const int32_t predicted_slot = loaded.even;
  loaded.address = loaded.address_of(predicted_slot);
  ptx::wait_for_previous_kernel();
  loaded.look_up();
  load_rows(shared, loaded, 0, num_tiles, blockIdx.x % a.next_blocks, warp, lane,
            [&](int32_t&) { return static_cast<bool>(__all_sync(~0u, loaded.even == predicted_slot)); });
}

}  // namespace strata::cuda::sparse_decode::few_heads
