// The start of the decode kernel for few heads.
#pragma once

#include "backends/cuda/common/touch.cuh"
#include "backends/cuda/sm90/sparse_decode/early_start.cuh"
#include "backends/cuda/sm90/sparse_decode/few_heads_loader.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// A loading warp's part of the block. Lengths, indices and rows are a chain of three misses. So indices are asked for together with
// lengths, as if every entry were looked at, and once more only if that is not so: before the kernel in front has ended, when lengths and
// indices may still change and do no more than bring rows to L2, and again as soon as it has.
template <bool kAligned, class Shared>
__device__ __forceinline__ void load_block(const DecodeArgs& a, Shared& shared, int32_t batch, int32_t query, int32_t split, int warp,
                                           int lane) {
  const auto start = [&](Rows<Shared::kFormat>& loaded, const TokenRows& rows, const BlockTiles& tiles) {
    loaded.start(RowList(a, batch, query, rows, tiles.end), tiles.first);
  };
  for (const Scope& scope : a.scope) {
    if (scope.lengths != nullptr) touch(scope.lengths + batch);
  }
  TokenRows rows(a, Lengths(a));
  if (rows.total == 0) return;
  BlockTiles tiles(rows, split);
  Rows<Shared::kFormat> loaded(a, warp, lane);
  start(loaded, rows, tiles);
  loaded.template bring_near<kAligned>(lane);
  ptx::wait_for_previous_kernel();
  const Lengths lengths(a, batch);
  start(loaded, rows, tiles);
  if (!rows.are_of(a, lengths)) {
    rows = TokenRows(a, lengths), tiles = BlockTiles(rows, split);
    if (rows.total == 0 || !rows.has(split)) return;
    start(loaded, rows, tiles);
  }
  load_rows<kAligned>(shared, loaded, tiles.end - tiles.first, warp, lane);
}

}  // namespace strata::cuda::sparse_decode::few_heads
