// The producer: a warpgroup that copies rows of q and attended rows unchanged into the ring, by 16-byte cp.async, or converts e4m3 rows to
// bf16 (quantized_rows.cuh). Eight lanes copy 128 consecutive bytes into one swizzled row of a chunk, which hits every bank once.
#pragma once

#include "backends/cuda/mqa_engine/quantized_rows.cuh"
#include "backends/cuda/mqa_engine/copy_narrow.cuh"
#include "backends/cuda/mqa_engine/pipeline.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/keep_in_l2.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/tma.cuh"

namespace strata::cuda::sparse_prefill {

template <class Problem>
class Producer {
  static constexpr int kDim = Problem::kDim;
  using S = typename Problem::Shape;
  using Args = typename Problem::Args;
  using Item = typename Problem::Item;
  using Rows = typename Problem::Rows;

 public:
  __device__ __forceinline__ Producer(const Args& args, SharedMemory<S>& memory)
      : a(args), shared(memory), warp(threadIdx.x % kWarpgroup / 32), lane(threadIdx.x % 32) {}

  // Continues after the items of another problem.
  template <class Before>
  __device__ __forceinline__ Producer(const Args& args, const Before& before)
      : a(args), shared(before.shared), warp(before.warp), lane(before.lane), tile(before.tile) {}

  __device__ __forceinline__ void run() {
    ItemScheduler<Problem> scheduler;
    for (int32_t i = scheduler.first(shared), end = scheduler.end(a, shared); i < end; i = scheduler.next(a, shared, i)) {
      const Item item = scheduler.item(a, shared, i);
      if constexpr (Problem::kSplit) {
        if (item.tiles == 0) continue;
      }
      tile.start_item();
      if constexpr (Problem::kSharesRows) {
        if (item.last_of_rows()) {  // the first item's rows are in shared memory
          produce_queries(item, 0);
          continue;
        }
      }
      if constexpr (Problem::kKeepsRows) keeps_rows = i < a.keeping_items;
      const Rows rows(a, item);
      if constexpr (Problem::kQuantized) {
        const auto begun = [&] {
          if constexpr (Problem::kDynamicSchedule) schedule_next(scheduler, i);
        };
        a.rows_aligned ? produce_quantized<true>(item, rows, begun) : produce_quantized<false>(item, rows, begun);
        continue;
      }
      // Loaded one tile ahead of its use. Lane l has the entry of the warp's row l.
      int32_t entry = look_up(rows, 0);
#pragma unroll 1
      for (int t = 0; t < S::kQueryTiles; ++t) produce_queries(item, t);
#pragma unroll 1
      for (int32_t t = 0; t < item.tiles; ++t) {
        const int32_t present = entry;
        entry = look_up(rows, t + 1);
        produce_rows(rows, present, t);
        if constexpr (Problem::kDynamicSchedule) {
          if (t == 0) schedule_next(scheduler, i);
        }
      }
    }
  }

 private:
  template <class>
  friend class Producer;

  __device__ __forceinline__ void schedule_next(const ItemScheduler<Problem>& scheduler, int32_t item) const {
    if (threadIdx.x % kWarpgroup == 0) scheduler.schedule_next(a, shared, item);
  }

  // Makes the compiler recompute what follows from the thread index for each tile: it would be spilled, and its loads would wait for row
  // copies.
  __device__ __forceinline__ void keep_nothing() { asm volatile("" : "+r"(lane), "+r"(warp)); }

  __device__ __forceinline__ int32_t look_up(const Rows& rows, int32_t t) const {
    return rows.look_up(lane < S::kRowsPerWarp, t * S::kRows + warp * S::kRowsPerWarp + lane);
  }

  // Addresses of the warp's rows of a tile; lane l has that of row l.
  struct RowLocations {
    uint32_t mask, location;  // mask: of attended rows
  };
  __device__ __forceinline__ RowLocations find(const Rows& rows, int32_t entry, int32_t t) const {
    const int32_t position = t * S::kRows + warp * S::kRowsPerWarp + lane;
    const bool attended = rows.attended(entry, position);
    return {.mask = __ballot_sync(~0u, attended), .location = attended ? rows.locate(entry, position) : 0};
  }

  // Waits until there is room for a phase of the tile.
  __device__ __forceinline__ void wait_for_room(int fill) const {
    if (S::kTail && fill == 0) wait(shared.weights_empty[tile.stage], tile.parity() ^ 1u);
#pragma unroll
    for (int i = 0; i < S::kTileSlots; ++i) {
      if ((i == S::kTileSlots - 1) == (fill == S::kFills - 1)) wait(shared.empty[tile.slot(i)], tile.slot_parity(i) ^ 1u);
    }
  }

  // Copies this lane's eighth of every chunk of the phase, of the warp's row 4 j + lane / 8. Zeros, without reading, if not valid.
  enum class EvictionPriority : uint8_t { first, normal, last };  // priority in L2
  template <bool kAligned, EvictionPriority kEviction>
  __device__ __forceinline__ void copy_row(int fill, int j, const uint16_t* from, bool valid) const {
    const int row = warp * S::kRowsPerWarp + 4 * j + lane / 8;
    const uint32_t to = unit_offset(row, lane % 8);
    const auto in_step = [fill](int c) { return (c / S::kSlotChunks == S::kTileSlots - 1) == (fill == S::kFills - 1); };
    const auto target = [&](int c) { return ptx::shared_address(tile.chunk(shared, c)) + to; };
    if constexpr (!kAligned) {
#pragma unroll 1
      for (int c = 0; c < S::kChunks; ++c) {
        if (in_step(c)) copy_narrow(target(c), from + c * kChunkDims, valid);
      }
      return;
    }
    uint32_t start = 0;
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      if (!in_step(c)) continue;
      if constexpr (kEviction != EvictionPriority::normal) {
        // A shuffle, because ptxas 13.0 generates an illegal instruction for a policy with an address that has a uniform part.
        if (c % S::kSlotChunks == 0) start = __shfl_sync(~0u, target(c), lane);
        ptx::cp_async_16_or_zero(start + c % S::kSlotChunks * S::kChunkBytes, from + c * kChunkDims, valid ? 16 : 0,
                                 kEviction == EvictionPriority::first ? ptx::evict_first_policy() : ptx::evict_last_policy());
      } else {
        ptx::cp_async_16_or_zero(target(c), from + c * kChunkDims, valid ? 16 : 0);
      }
    }
  }

  // Copies the j-th four rows of the warp, those that are attended.
  template <bool kAligned, EvictionPriority kEviction = EvictionPriority::normal>
  __device__ __forceinline__ void copy_rows(const Rows& rows, int fill, int j, uint32_t location, uint32_t mask) const {
    const int row = 4 * j + lane / 8;
    const uint32_t row_location = __shfl_sync(~0u, location, row);
    copy_row<kAligned, kEviction>(fill, j, rows.address(row_location) + 8 * (lane % 8), (mask >> row & 1u) != 0);
  }

  // copied: by cp.async, directly to the ring.
  __device__ __forceinline__ void finish_fill(int fill, bool copied) {
    const uint32_t full = ptx::shared_address(&shared.full[tile.stage][fill]);
    if (copied) {
      ptx::cp_async_arrive(full);
    } else {
      ptx::mbarrier_arrive(full);
    }
    arrive_warp(shared.full[tile.stage][fill]);  // for what is not written by cp.async: attended
  }

  __device__ __forceinline__ void produce_queries(const Item& item, int t) {
    keep_nothing();
    const uint16_t* q = Problem::queries(a, item) + 8 * (lane % 8);
#pragma unroll
    for (int fill = 0; fill < S::kFills; ++fill) {
      wait_for_room(fill);
#pragma unroll 1
      for (int j = 0; j < S::kRowsPerWarp / 4; ++j) {
        const int row = t * S::kRows + warp * S::kRowsPerWarp + 4 * j + lane / 8, head = item.first_head + row;
        const bool valid = row < kHeadTile && Problem::exists(a, item, head);
        const uint16_t* from = Problem::query(a, item, q, valid ? head : 0);
        a.rows_aligned ? copy_row<true, EvictionPriority::first>(fill, j, from, valid)
                       : copy_row<false, EvictionPriority::first>(fill, j, from, valid);
      }
      finish_fill(fill, a.rows_aligned);
    }
    tile.advance_queries();
  }

  __device__ __forceinline__ void produce_rows(const Rows& rows, int32_t entry, int32_t t) {
    keep_nothing();
    const auto [mask, location] = find(rows, entry, t);
#pragma unroll
    for (int fill = 0; fill < S::kFills; ++fill) {
      wait_for_room(fill);
      if (fill == 0 && lane == 0) shared.attended[tile.stage][warp] = static_cast<uint16_t>(mask);
      // Tested once, and not between copies: 1 us less of 71 in dense decode of 16 requests.
      if (Problem::kKeepsRows && keeps_rows) {
#pragma unroll
        for (int j = 0; j < S::kRowsPerWarp / 4; ++j) copy_rows<true, EvictionPriority::last>(rows, fill, j, location, mask);
      } else if (a.rows_aligned) {
#pragma unroll
        for (int j = 0; j < S::kRowsPerWarp / 4; ++j) copy_rows<true>(rows, fill, j, location, mask);
      } else {
#pragma unroll 1
        for (int j = 0; j < S::kRowsPerWarp / 4; ++j) copy_rows<false>(rows, fill, j, location, mask);
      }
      finish_fill(fill, a.rows_aligned);
    }
    tile.advance();
  }

  // Calls what(step, address, wanted) for the lane's e4m3 values of a group of rows.
  template <class What>
  __device__ __forceinline__ void for_each_step(const Rows& rows, const RowLocations& locations, int group, const What& what) const {
    const int row = 4 * group + QuantizedRows<S>::row();
    const uint32_t location = __shfl_sync(~0u, locations.location, row);
    const uint8_t* from = reinterpret_cast<const uint8_t*>(rows.address(location)) + QuantizedRows<S>::first_value();
    const bool valid = (locations.mask >> row & 1u) != 0;
#pragma unroll
    for (int step = 0; step < QuantizedTile<S>::kSteps; ++step) what(step, from, valid);
  }

  // Converts a group of rows to bf16 while the next groups load. A tile's first groups are loaded during the previous tile.
  template <bool kAligned, class Begun>
  __device__ __forceinline__ void produce_quantized(const Item& item, const Rows& rows, const Begun& begun) {
    using Tile = QuantizedTile<S>;
    QuantizedRows<S> quantized(shared);
    RowLocations locations = find(rows, look_up(rows, 0), 0);
    int32_t entry = look_up(rows, 1);
#pragma unroll
    for (int group = 0; group < Tile::kPrefetchDistance; ++group) {
      for_each_step(rows, locations, group,
                    [&](int step, const uint8_t* from, bool valid) { quantized.template issue_load<kAligned>(step, from, valid); });
      quantized.next_group();
    }
#pragma unroll 1
    for (int t = 0; t < S::kQueryTiles; ++t) produce_queries(item, t);
    uint4 next = quantized.template arrived<0>(0);
#pragma unroll 1
    for (int32_t t = 0; t < item.tiles; ++t) {
      wait_for_room(0);
      if (lane == 0) shared.attended[tile.stage][warp] = static_cast<uint16_t>(locations.mask);
      const uint32_t first_chunk = ptx::shared_address(tile.chunk(shared, 0));
#pragma unroll
      for (int group = 0; group < Tile::kGroups; ++group) {
        if (group + Tile::kPrefetchDistance == Tile::kGroups) {
          // After the item's tiles nothing is loaded, though there may be rows: those of another split.
          locations = t + 1 < item.tiles ? find(rows, entry, t + 1) : RowLocations{};
          entry = look_up(rows, t + 2);
        }
        const int row = warp * S::kRowsPerWarp + 4 * group + QuantizedRows<S>::row();
        const float factor = rows.factor(t * S::kRows + row);
        for_each_step(rows, locations, (group + Tile::kPrefetchDistance) % Tile::kGroups, [&](int step, const uint8_t* from, bool valid) {
          const uint4 present = next;
          next = quantized.template arrived<1>(step + 1);  // loads while these are converted
          quantized.convert(step, present, first_chunk, row, factor);
          quantized.template issue_load<kAligned>(step, from, valid);
        });
        quantized.next_group();
      }
      finish_fill(0, false);
      tile.advance();
      if (t == 0) begun();
    }
    ptx::cp_async_wait<0>();  // of zeros: the next item's rows use the same slots
  }

  const Args& a;
  SharedMemory<S>& shared;
  int warp, lane;
  bool keeps_rows = false;  // of this item; its rows are aligned
  TilePosition<Problem> tile;
};

}  // namespace strata::cuda::sparse_prefill
