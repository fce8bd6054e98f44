// The start of the decode kernel for few heads.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/early_start.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_loader.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// A loading warp's part of the block. Lengths, indices and rows are a chain of three misses. So indices are asked for as if every entry
// were looked at, before the kernel in front has ended, when lengths and indices may still change. They bring the first tile's rows to L2,
// and as soon as it has ended that tile is copied from where they say, while lengths and indices are on their way once more. A block that
// begins late, behind the end of a block in front, does without the former: a consumer, which has less to do, has found by then that the
// kernel has ended. The first indices are asked for in front of the block's first barrier, and registers given back behind that: it waits
// for them.
template <int kRegisters, class Shared, Cut kCut>
__device__ __forceinline__ void load_block(const DecodeArgs& a, Shared& shared, const Seat<kCut>& seat, int warp, int lane) {
  const auto start = [&](Rows<Shared::kFormat>& loaded, const TokenRows& rows, const BlockTiles& tiles) {
    loaded.start(RowList(a, seat.batch, seat.query, rows, tiles.end), tiles.first);
  };
  TokenRows rows = seat.expected(a);
  BlockTiles tiles = seat.tiles(rows);
  Rows<Shared::kFormat> loaded(a, warp, lane);
  if (rows.total > 0) start(loaded, rows, tiles);
  meet<Shared>();
  ptx::registers_shrink<kRegisters>();
  if (rows.total == 0) return;
  if (!ptx::mbarrier_test(ptx::shared_address(&shared.previous_ended), 0)) loaded.bring_near(lane);
  const int32_t guess = loaded.even;
  loaded.address = loaded.address_of(guess);
  ptx::wait_for_previous_kernel();
  const int32_t length = Lengths::asked_by(lane, a, seat.batch);
  start(loaded, rows, tiles);
  load_rows(shared, loaded, 0, 1, blockIdx.y * gridDim.x + blockIdx.x, warp, lane, [&](int32_t& num_tiles) {
    const Lengths lengths(length);
    const bool as_guessed = rows.are_of(a, lengths);
    if (!as_guessed) rows = seat.rows(a, lengths), tiles = seat.tiles(rows);
    num_tiles = max(tiles.end - tiles.first, 0);
    if (!as_guessed && num_tiles > 0) start(loaded, rows, tiles);
    return as_guessed && num_tiles > 0 && __all_sync(~0u, loaded.even == guess);
  });
}

// The same of a schedule's piece, whose rows are known from the start: only indices are guessed.
template <int kRegisters, class Shared>
__device__ __forceinline__ void load_block(const DecodeArgs& a, Shared& shared, const Seat<Cut::scheduled>& seat, int warp, int lane) {
  Rows<Shared::kFormat> loaded(a, warp, lane);
  int32_t num_tiles;
  {
    const TokenRows rows = seat.expected(a);
    const BlockTiles tiles = seat.tiles(rows);
    num_tiles = tiles.end - tiles.first;
    if (num_tiles > 0) loaded.start(RowList(a, seat.batch, seat.query, rows, tiles.end), tiles.first);
  }
  meet<Shared>();
  ptx::registers_shrink<kRegisters>();
  if (num_tiles == 0) return;
  if (!ptx::mbarrier_test(ptx::shared_address(&shared.previous_ended), 0)) loaded.bring_near(lane);
  const int32_t guess = loaded.even;
  loaded.address = loaded.address_of(guess);
  ptx::wait_for_previous_kernel();
  loaded.look_up();
  load_rows(shared, loaded, 0, num_tiles, blockIdx.x % a.next_blocks, warp, lane,
            [&](int32_t&) { return static_cast<bool>(__all_sync(~0u, loaded.even == guess)); });
}

}  // namespace strata::cuda::sparse_decode::few_heads
