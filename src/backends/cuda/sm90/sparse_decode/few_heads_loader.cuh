// The loading warpgroup of the decode kernel for few heads: rows go from memory to the ring as they are, by asynchronous copies of 16
// bytes, so that nothing but the ring's depth bounds what is in flight.
#pragma once

#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/sm90/sparse_decode/few_heads_shared.cuh"
#include "backends/cuda/sm90/sparse_decode/producer.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// 16 bytes, zeros when not wanted; the data of narrow loads is there when the thread goes on.
template <bool kAligned>
__device__ __forceinline__ void copy_16(uint32_t shared, const uint8_t* from, bool wanted) {
  if constexpr (kAligned) {
    ptx::cp_async_16_or_zero(shared, from, wanted ? 16 : 0);
  } else {
    ptx::st_shared(shared, load_16<false>(wanted, from));
  }
}
// Eight bytes to where they are ordered before this thread's arrival.
template <bool kAligned>
__device__ __forceinline__ void copy_8(uint64_t& shared, const uint8_t* from, bool wanted) {
  if constexpr (kAligned) {
    ptx::cp_async_8_or_zero(ptx::shared_address(&shared), from, wanted ? 8 : 0);
  } else {
    uint64_t v = 0;
    for (int i = 0; wanted && i < 4; ++i) v |= uint64_t{load_u16(from + 2 * i)} << 16 * i;
    shared = v;
  }
}

__device__ __forceinline__ const uint8_t* of_lane(const uint8_t* p, int lane) {
  return reinterpret_cast<const uint8_t*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(p), lane));
}

// Where a warp's 16 rows of the next two tiles are: of tile lane / 16, row lane % 16. Their slots are asked for two tiles before.
template <KvFormat kFormat>
struct Rows {
  static constexpr int kWarpRows = 16, kTiles = 2, kStep = kTiles * kRowTile;
  const DecodeArgs& a;
  RowList list;
  const int32_t place;  // in the first two tiles
  int32_t at;           // of `next` in the list
  int32_t next, behind;
  RowAddress<kFormat> address;

  __device__ __forceinline__ Rows(const DecodeArgs& a, int warp, int lane)
      : a(a), place(warp * kWarpRows + lane / kWarpRows * kRowTile + lane % kWarpRows) {}
  __device__ __forceinline__ void start(const RowList& of_block, int32_t first_tile) {
    list = of_block;
    at = first_tile * kRowTile + place;
    next = list.slot(at);
    behind = list.slot(at + kStep);
  }
  __device__ __forceinline__ RowAddress<kFormat> next_address() const { return RowAddress<kFormat>(a, at < list.main, next); }
  // Brings the next two tiles' rows to L2, four lanes a row.
  __device__ __forceinline__ void bring_near(int lane) const {
    const RowAddress<kFormat> rows = next_address();
#pragma unroll 1
    for (int row = lane / 4; row < 32; row += 8) {
      RowAddress<kFormat> near;
      near.data = of_lane(rows.data, row), near.scales = of_lane(rows.scales, row);
      if (near.data != nullptr) near.data += 16 * (lane % 4);
      near.prefetch(lane % 4);
    }
  }
  __device__ __forceinline__ void advance() {
    address = next_address();
    next = behind;
    behind = list.slot(at + 2 * kStep);
    at += kStep;
  }
};

// A warp's rows of a tile. 32 lanes take 512 consecutive bytes of a row; what is behind those is taken of several rows together.
template <bool kAligned, class Shared>
__device__ __forceinline__ void copy_rows(Shared& shared, const RowAddress<Shared::kFormat>& address, int32_t tile, int warp, int lane) {
  constexpr int kWarpRows = 16, kUnits = Shared::kRowBytes / 16, kTogether = kAligned ? kWarpRows : 2;
  const int first_row = warp * kWarpRows, first_lane = tile % 2 * kWarpRows;
  const uint32_t stage = tile % Shared::kRing, to = ptx::shared_address(shared.rows[stage][first_row]);
#pragma unroll kTogether
  for (int r = 0; r < kWarpRows; ++r) {
    const uint8_t* const row = of_lane(address.data, first_lane + r);
    copy_16<kAligned>(to + r * Shared::kPitch + ((lane ^ bank_swap(r)) << 4), row + 16 * lane, row != nullptr);
  }
#pragma unroll
  for (int r = 0; r < kWarpRows; r += 8) {
    const uint8_t* const row = of_lane(address.data, first_lane + r + lane / 4);
    const uint32_t to_row = to + (r + lane / 4) * Shared::kPitch;
    const int swap = bank_swap(r + lane / 4);
#pragma unroll
    for (int unit = 32; unit + 4 <= kUnits; unit += 4) {
      copy_16<kAligned>(to_row + ((unit + lane % 4) ^ swap) * 16, row + 16 * (unit + lane % 4), row != nullptr);
    }
  }
  if constexpr (Shared::kV4) {
    const uint8_t* const scales = of_lane(address.scales, first_lane + lane % kWarpRows);
    if (lane < kWarpRows) copy_8<kAligned>(shared.scales[stage][first_row + lane], scales, scales != nullptr);
  } else {
    const uint8_t* const row = of_lane(address.data, first_lane + lane % kWarpRows);
    constexpr int kLast = kUnits - 1;
    if (lane < kWarpRows) copy_16<kAligned>(to + lane * Shared::kPitch + (kLast ^ bank_swap(lane)) * 16, row + 16 * kLast, row != nullptr);
  }
}

// A block's tiles.
template <bool kAligned, class Shared>
__device__ __forceinline__ void load_rows(Shared& shared, Rows<Shared::kFormat>& rows, int32_t tiles, int warp, int lane) {
#pragma unroll 1
  for (int32_t tile = 0; tile < tiles; ++tile) {
    const uint32_t stage = tile % Shared::kRing, parity = tile / Shared::kRing & 1u, full = ptx::shared_address(&shared.full[stage]);
    if (tile % 2 == 0) rows.advance();
    const uint32_t attended = __ballot_sync(~0u, rows.address.data != nullptr) >> (tile % 2 * 16);
    ptx::mbarrier_wait(ptx::shared_address(&shared.empty[stage]), parity ^ 1u);
    copy_rows<kAligned>(shared, rows.address, tile, warp, lane);
    if (lane == 0) shared.attended[stage][warp] = attended;
    if constexpr (kAligned) {
      ptx::cp_async_arrive(full);
    } else {
      ptx::mbarrier_arrive(full);
    }
    if (lane == 0) ptx::mbarrier_arrive(full);
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads
