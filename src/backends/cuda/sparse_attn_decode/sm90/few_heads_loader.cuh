// The loading warpgroup of the decode kernel for few heads. Rows are copied to the ring unchanged, by asynchronous 16-byte copies, so that
// only the ring's depth limits the bytes in flight.
#pragma once

#include <type_traits>

#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads_shared.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/producer.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Copies 16 bytes, or zeros if not valid.
__device__ __forceinline__ void copy_16(uint32_t shared, const uint8_t* from, bool valid) {
  ptx::cp_async_16_or_zero(shared, from, valid ? 16 : 0);
}

__device__ __forceinline__ const uint8_t* pointer_of_lane(const uint8_t* p, int lane) {
  return reinterpret_cast<const uint8_t*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(p), lane));
}

// Addresses of a warp's 16 rows of the next two tiles: lane i has row i % 16 of tile i / 16. Slots are loaded four tiles ahead, alternately
// into two registers: a load after a branch, or into another register, would be waited for at once.
template <KvFormat kFormat>
struct Rows {
  static constexpr int kWarpRows = 16, kTiles = 2, kStep = kTiles * kRowTile;
  const DecodeArgs& a;
  RowList list;
  const int32_t first_position;  // position in the first two tiles
  int32_t at;                    // position in the list of the next two tiles
  int32_t even, odd;             // slots of the next pairs of tiles, with an even and an odd number
  RowAddress<kFormat> address;

  __device__ __forceinline__ Rows(const DecodeArgs& a, int warp, int lane)
      : a(a), first_position(warp * kWarpRows + lane / kWarpRows * kRowTile + lane % kWarpRows) {}
  // The list must not be empty.
  __device__ __forceinline__ void start(const RowList& of_block, int32_t first_tile) {
    list = of_block;
    at = first_tile * kRowTile + first_position;
    look_up();
  }
  // Loads the slots of the first tiles with their present contents.
  __device__ __forceinline__ void look_up() {
    even = load_slot(at);
    odd = load_slot(at + kStep);
  }
  // Positions past the end load the last entry.
  __device__ __forceinline__ int32_t load_slot(int32_t position) const {
    const int32_t entry = min(position, list.end - 1);
    const int32_t* const slot = entry < list.main ? list.indices[0] + entry : list.indices[1] + (entry - list.main);
    return static_cast<int32_t>(ptx::ld_current_if(true, slot, 0));
  }
  __device__ __forceinline__ RowAddress<kFormat> address_of(int32_t slot) const {
    return RowAddress<kFormat>(a, at < list.main, at < list.end ? slot : -1);
  }
  // Prefetches the first tile's rows to L2.
  __device__ __forceinline__ void prefetch(int lane) const {
    const RowAddress<kFormat> row = address_of(even);
    if (lane >= kWarpRows || row.data == nullptr) return;
    ptx::bulk_prefetch_l2(row.data, RowAddress<kFormat>::kRowBytes);
    if (kFormat == KvFormat::fp8_ds_mla_v4) ptx::prefetch_l2(row.scales);
  }
  __device__ __forceinline__ void advance(uint32_t pair) {
    const auto take = [&](int32_t& slot) {
      address = address_of(slot);
      slot = load_slot(at + 2 * kStep);
      at += kStep;
    };
    pair % 2 == 0 ? take(even) : take(odd);
  }
};

// Copies a warp's rows of a tile. Eight lanes copy one of four whole 128-byte lines of each of four rows, so that a lane needs few rows'
// addresses. The remaining units of a row, before and after these lines, are copied for several rows together.
template <class Shared>
__device__ __forceinline__ void copy_rows(Shared& shared, const RowAddress<Shared::kFormat>& address, uint32_t stage, uint32_t second,
                                          int warp, int lane) {
  constexpr int kWarpRows = 16, kLanes = 8, kLines = 4, kWhole = kLanes * kLines, kLeft = Shared::kRowBytes / 16 - kWhole;
  constexpr int kLast = kLeft % kLanes, kUnroll = kWarpRows / 4;
  static_assert(kLeft < 2 * kLanes && 32 % kLast == 0);
  const int first_row = warp * kWarpRows, first_lane = static_cast<int>(second) * kWarpRows;
  const uint32_t to = ptx::shared_address(shared.rows[stage][first_row]);
  // V4's rows are at multiples of 64 bytes: four units are as far from the next line as from the previous one.
  const auto first_whole = [](const uint8_t* row) {
    const uint32_t unit = static_cast<uint32_t>(reinterpret_cast<uint64_t>(row)) >> 4;
    return static_cast<int>(Shared::kV4 ? unit & (kLanes / 2) : (0 - unit) & (kLanes - 1));
  };
  const auto left_unit = [&](const uint8_t* row, int i) { return i < first_whole(row) ? i : i + kWhole; };
#pragma unroll kUnroll
  for (int r = 0; r < kWarpRows; r += 32 / kLanes) {
    const int in_warp = r + lane / kLanes;
    const uint8_t* const row = pointer_of_lane(address.data, first_lane + in_warp);
    const uint32_t to_row = to + in_warp * Shared::kPitch;
    const int unit = first_whole(row) + lane % kLanes;
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      copy_16(to_row + ((unit ^ bank_swap(in_warp)) << 4) + 128 * i, row + 16 * unit + 128 * i, row != nullptr);
    }
    if constexpr (kLeft > kLanes) {
      const int left = left_unit(row, lane % kLanes);
      copy_16(to_row + ((left ^ bank_swap(in_warp)) << 4), row + 16 * left, row != nullptr);
    }
  }
#pragma unroll
  for (int r = 0; r < kWarpRows; r += 32 / kLast) {
    const int in_warp = r + lane / kLast;
    const uint8_t* const row = pointer_of_lane(address.data, first_lane + in_warp % kWarpRows);
    const int unit = left_unit(row, kLeft - kLast + lane % kLast);
    if (in_warp < kWarpRows) copy_16(to + in_warp * Shared::kPitch + ((unit ^ bank_swap(in_warp)) << 4), row + 16 * unit, row != nullptr);
  }
  if constexpr (Shared::kV4) {
    const uint8_t* const scales = pointer_of_lane(address.scales, first_lane + lane % kWarpRows);
    if (lane < kWarpRows)
      ptx::cp_async_8_or_zero(ptx::shared_address(&shared.scales[stage][first_row + lane]), scales, scales != nullptr ? 8 : 0);
  }
}

// Waits until the CTA's tile `at` may be loaded, and returns its stage.
template <class Shared>
__device__ __forceinline__ RingStage<Shared> acquire_stage(Shared& shared, uint32_t at) {
  const RingStage<Shared> stage(at);
  if (Shared::kTilesInFlight < Shared::kRing && at >= Shared::kTilesInFlight)
    RingStage<Shared>(at - Shared::kTilesInFlight).wait_until_full(shared);
  stage.wait_until_empty(shared);
  return stage;
}

// Signals that the tile has arrived when this thread's copies so far have.
template <class Shared>
__device__ __forceinline__ void signal(Shared& shared, uint32_t stage, int lane) {
  const uint32_t full = ptx::shared_address(&shared.full[stage]);
  ptx::cp_async_arrive(full);
  if (arrives(lane)) ptx::mbarrier_arrive(full);
}

// No address is speculative.
struct Confirmed {};

// Loads the tiles of a token, from the CTA's tile `at` on. `item`: index of the token in the call. Without Confirmed, the first tile's rows
// are copied from speculative addresses, `rows.address`, while the actual slots are loading. confirm() sets the number of tiles, and
// returns false if the first tile must be copied again.
template <class Shared, class Confirm>
__device__ __forceinline__ void load_rows(Shared& shared, Rows<Shared::kFormat>& rows, uint32_t at, int32_t tiles, uint32_t item, int warp,
                                          int lane, const Confirm& confirm) {
  bool speculative = !std::is_same_v<Confirm, Confirmed>;
#pragma unroll 1
  for (uint32_t tile = 0; static_cast<int32_t>(tile) < tiles; ++tile) {
    if (tile % 2 == 0 && !speculative && rows.list.end > 0) rows.advance(tile / 2);
    const uint32_t stage = acquire_stage(shared, at + tile).index;
    copy_rows(shared, rows.address, stage, tile % 2, warp, lane);
    // Most calls have nothing to prefetch: a branch of the whole warp.
    if (static_cast<int32_t>(tile) < rows.a.next_times) {
      __syncwarp();  // without it ptxas predicates the branch, and every tile executes its instructions
      prefetch_next_weights<kWarpgroup / 32>(rows.a, item, tile, warp);
    }
    if constexpr (!std::is_same_v<Confirm, Confirmed>) {
      if (speculative) {
        speculative = false;
        if (!confirm(tiles)) {
          ptx::cp_async_commit();
          ptx::cp_async_wait<0>();
          __syncwarp();  // which lane copies what depends on the row's address
          tile = ~0u;
          continue;
        }
        rows.advance(0);
      }
    }
    const uint32_t attended = __ballot_sync(~0u, rows.address.data != nullptr) >> (tile % 2 * 16);
    if (lane == 0) shared.attended[stage][warp] = attended;
    signal(shared, stage, lane);
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
