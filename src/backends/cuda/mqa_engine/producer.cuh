// The producer: a warpgroup that copies rows of q and attended rows into the ring, as they are, by 16-byte cp.async; or, of e4m3 codes,
// what they are as bf16 (coded_rows.cuh). Eight lanes copy 128 consecutive bytes into one swizzled row of a chunk, which hits every bank
// once.
#pragma once

#include "backends/cuda/mqa_engine/coded_rows.cuh"
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

  // Goes on where other items ended.
  template <class Before>
  __device__ __forceinline__ Producer(const Args& args, const Before& before)
      : a(args), shared(before.shared), warp(before.warp), lane(before.lane), tile(before.tile) {}

  __device__ __forceinline__ void run() {
    Items<Problem> order;
    for (int32_t i = order.first(shared), end = order.end(a, shared); i < end; i = order.next(a, shared, i)) {
      const Item item = order.item(a, shared, i);
      if constexpr (Problem::kSplit) {
        if (item.tiles == 0) continue;
      }
      tile.start_item();
      if constexpr (Problem::kSharesRows) {
        if (item.last_of_rows()) {  // the first item's are there
          produce_queries(item, 0);
          continue;
        }
      }
      if constexpr (Problem::kKeepsRows) keeps_rows = i < a.keeping_items;
      const Rows rows(a, item);
      if constexpr (Problem::kCodes) {
        const auto begun = [&] {
          if constexpr (Problem::kDeals) deal(order, i);
        };
        a.rows_aligned ? produce_codes<true>(item, rows, begun) : produce_codes<false>(item, rows, begun);
        continue;
      }
      // A tile ahead of its use. Lane l has the entry of the warp's row l.
      int32_t entry = look_up(rows, 0);
#pragma unroll 1
      for (int t = 0; t < S::kQueryTiles; ++t) produce_queries(item, t);
#pragma unroll 1
      for (int32_t t = 0; t < item.tiles; ++t) {
        const int32_t present = entry;
        entry = look_up(rows, t + 1);
        produce_rows(rows, present, t);
        if constexpr (Problem::kDeals) {
          if (t == 0) deal(order, i);
        }
      }
    }
  }

 private:
  template <class>
  friend class Producer;

  __device__ __forceinline__ void deal(const Items<Problem>& order, int32_t item) const {
    if (threadIdx.x % kWarpgroup == 0) order.deal(a, shared, item);
  }

  // What follows from a thread's place is computed again for each tile: kept, it would be spilled, and loads wait behind copies of rows.
  __device__ __forceinline__ void keep_nothing() { asm volatile("" : "+r"(lane), "+r"(warp)); }

  __device__ __forceinline__ int32_t look_up(const Rows& rows, int32_t t) const {
    return rows.look_up(lane < S::kRowsPerWarp, t * S::kRows + warp * S::kRowsPerWarp + lane);
  }

  // Where the warp's rows of a tile are; lane l says it of row l.
  struct Places {
    uint32_t mask, place;  // mask: of attended rows
  };
  __device__ __forceinline__ Places find(const Rows& rows, int32_t entry, int32_t t) const {
    const int32_t position = t * S::kRows + warp * S::kRowsPerWarp + lane;
    const bool attended = rows.attended(entry, position);
    return {.mask = __ballot_sync(~0u, attended), .place = attended ? rows.locate(entry, position) : 0};
  }

  // Until there is room for a step of the tile.
  __device__ __forceinline__ void wait_for_room(int fill) const {
    if (S::kTail && fill == 0) wait(shared.weights_empty[tile.at], tile.parity() ^ 1u);
#pragma unroll
    for (int i = 0; i < S::kParts; ++i) {
      if ((i == S::kParts - 1) == (fill == S::kFills - 1)) wait(shared.empty[tile.slot(i)], tile.slot_parity(i) ^ 1u);
    }
  }

  // This lane's eighth of every chunk of the step, of the warp's row 4 j + lane / 8; zeros when not wanted, and nothing is read then.
  enum class Leaves : uint8_t { first, as_others, last };  // L2
  template <bool kAligned, Leaves kLeaves>
  __device__ __forceinline__ void copy_row(int fill, int j, const uint16_t* from, bool wanted) const {
    const int row = warp * S::kRowsPerWarp + 4 * j + lane / 8;
    const uint32_t to = unit_offset(row, lane % 8);
    const auto in_step = [fill](int c) { return (c / S::kPartChunks == S::kParts - 1) == (fill == S::kFills - 1); };
    const auto target = [&](int c) { return ptx::shared_address(tile.chunk(shared, c)) + to; };
    if constexpr (!kAligned) {
#pragma unroll 1
      for (int c = 0; c < S::kChunks; ++c) {
        if (in_step(c)) copy_narrow(target(c), from + c * kChunkLanes, wanted);
      }
      return;
    }
    uint32_t start = 0;
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      if (!in_step(c)) continue;
      if constexpr (kLeaves != Leaves::as_others) {
        // A shuffle, as ptxas 13.0 makes an illegal instruction of a policy and an address that has a part that is the same in all lanes.
        if (c % S::kPartChunks == 0) start = __shfl_sync(~0u, target(c), lane);
        ptx::cp_async_16_or_zero(start + c % S::kPartChunks * S::kChunkBytes, from + c * kChunkLanes, wanted ? 16 : 0,
                                 kLeaves == Leaves::first ? ptx::evict_first_policy() : ptx::evict_last_policy());
      } else {
        ptx::cp_async_16_or_zero(target(c), from + c * kChunkLanes, wanted ? 16 : 0);
      }
    }
  }

  // Four attended rows of the warp's, the j-th such.
  template <bool kAligned, Leaves kLeaves = Leaves::as_others>
  __device__ __forceinline__ void copy_rows(const Rows& rows, int fill, int j, uint32_t place, uint32_t mask) const {
    const int row = 4 * j + lane / 8;
    const uint32_t place_of_row = __shfl_sync(~0u, place, row);
    copy_row<kAligned, kLeaves>(fill, j, rows.address(place_of_row) + 8 * (lane % 8), (mask >> row & 1u) != 0);
  }

  // copied: by cp.async, to the ring itself.
  __device__ __forceinline__ void finish_fill(int fill, bool copied) {
    const uint32_t full = ptx::shared_address(&shared.full[tile.at][fill]);
    if (copied) {
      ptx::cp_async_arrive(full);
    } else {
      ptx::mbarrier_arrive(full);
    }
    arrive_warp(shared.full[tile.at][fill]);  // for what is not cp.async: attended
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
        const bool wanted = row < kHeadTile && Problem::exists(a, item, head);
        const uint16_t* from = Problem::query(a, item, q, wanted ? head : 0);
        a.rows_aligned ? copy_row<true, Leaves::first>(fill, j, from, wanted) : copy_row<false, Leaves::first>(fill, j, from, wanted);
      }
      finish_fill(fill, a.rows_aligned);
    }
    tile.advance_queries();
  }

  __device__ __forceinline__ void produce_rows(const Rows& rows, int32_t entry, int32_t t) {
    keep_nothing();
    const auto [mask, place] = find(rows, entry, t);
#pragma unroll
    for (int fill = 0; fill < S::kFills; ++fill) {
      wait_for_room(fill);
      if (fill == 0 && lane == 0) shared.attended[tile.at][warp] = static_cast<uint16_t>(mask);
      // Asked once, and not between copies: 1 us less of 71 in dense decode of 16 requests.
      if (Problem::kKeepsRows && keeps_rows) {
#pragma unroll
        for (int j = 0; j < S::kRowsPerWarp / 4; ++j) copy_rows<true, Leaves::last>(rows, fill, j, place, mask);
      } else if (a.rows_aligned) {
#pragma unroll
        for (int j = 0; j < S::kRowsPerWarp / 4; ++j) copy_rows<true>(rows, fill, j, place, mask);
      } else {
#pragma unroll 1
        for (int j = 0; j < S::kRowsPerWarp / 4; ++j) copy_rows<false>(rows, fill, j, place, mask);
      }
      finish_fill(fill, a.rows_aligned);
    }
    tile.advance();
  }

  // Calls what(step, address, wanted) for the lane's codes of a group of rows.
  template <class What>
  __device__ __forceinline__ void for_each_step(const Rows& rows, const Places& places, int group, const What& what) const {
    const int row = 4 * group + CodedRows<S>::row();
    const uint32_t place = __shfl_sync(~0u, places.place, row);
    const uint8_t* from = reinterpret_cast<const uint8_t*>(rows.address(place)) + CodedRows<S>::first_code();
    const bool wanted = (places.mask >> row & 1u) != 0;
#pragma unroll
    for (int step = 0; step < CodedTile<S>::kSteps; ++step) what(step, from, wanted);
  }

  // A group of rows becomes bf16 while the next ones are on their way: of a tile the first groups come with those of the tile before.
  template <bool kAligned, class Begun>
  __device__ __forceinline__ void produce_codes(const Item& item, const Rows& rows, const Begun& begun) {
    using Tile = CodedTile<S>;
    CodedRows<S> codes(shared);
    Places places = find(rows, look_up(rows, 0), 0);
    int32_t entry = look_up(rows, 1);
#pragma unroll
    for (int group = 0; group < Tile::kAhead; ++group) {
      for_each_step(rows, places, group,
                    [&](int step, const uint8_t* from, bool wanted) { codes.template ask<kAligned>(step, from, wanted); });
      codes.next_group();
    }
#pragma unroll 1
    for (int t = 0; t < S::kQueryTiles; ++t) produce_queries(item, t);
    uint4 next = codes.template arrived<0>(0);
#pragma unroll 1
    for (int32_t t = 0; t < item.tiles; ++t) {
      wait_for_room(0);
      if (lane == 0) shared.attended[tile.at][warp] = static_cast<uint16_t>(places.mask);
      const uint32_t first_chunk = ptx::shared_address(tile.chunk(shared, 0));
#pragma unroll
      for (int group = 0; group < Tile::kGroups; ++group) {
        if (group + Tile::kAhead == Tile::kGroups) {
          // Behind the item's tiles nothing is asked for, though there may be rows: another part's.
          places = t + 1 < item.tiles ? find(rows, entry, t + 1) : Places{};
          entry = look_up(rows, t + 2);
        }
        const int row = warp * S::kRowsPerWarp + 4 * group + CodedRows<S>::row();
        const float factor = rows.factor(t * S::kRows + row);
        for_each_step(rows, places, (group + Tile::kAhead) % Tile::kGroups, [&](int step, const uint8_t* from, bool wanted) {
          const uint4 present = next;
          next = codes.template arrived<1>(step + 1);  // on its way while these are converted
          codes.convert(step, present, first_chunk, row, factor);
          codes.template ask<kAligned>(step, from, wanted);
        });
        codes.next_group();
      }
      finish_fill(0, false);
      tile.advance();
      if (t == 0) begun();
    }
    ptx::cp_async_wait<0>();  // of zeros: the next item's rows go to the same places
  }

  const Args& a;
  SharedMemory<S>& shared;
  int warp, lane;
  bool keeps_rows = false;  // of this item, which are aligned
  TilePosition<Problem> tile;
};

}  // namespace strata::cuda::sparse_prefill
