// A token's rows as the device sees them: lengths, splits, and the list of both scopes.
#pragma once

#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/config.h"

namespace strata::cuda::sparse_decode {

// Divides by a number that is 1 in most calls: a division takes 200 cycles, and a CTA's start has two in a row.
__device__ __forceinline__ int32_t divide(int32_t number, int32_t by) { return by == 1 ? number : number / by; }

// Numbers of entries inside the length of each scope. The loads are waited for at first use; they bypass L1 (early_start.cuh).
struct Lengths {
  int32_t main, extra;

  __device__ __forceinline__ Lengths(const DecodeArgs& a, int32_t batch)
      : main(length(a.scope[0], batch)), extra(length(a.scope[1], batch)) {}
  // From the loads of load_lane(), in lanes 0 and 1.
  __device__ __forceinline__ explicit Lengths(int32_t lane_length)
      : main(__shfl_sync(~0u, lane_length, 0)), extra(__shfl_sync(~0u, lane_length, 1)) {}
  // A length loaded by all lanes moves to a uniform register, for which a warp waits at once. So even lanes load one, odd lanes the other.
  static __device__ __forceinline__ int32_t load_lane(int lane, const DecodeArgs& a, int32_t batch) {
    const Scope &m = a.scope[0], &e = a.scope[1];
    const int32_t* const lengths = lane % 2 == 0 ? m.lengths : e.lengths;
    const int32_t width = lane % 2 == 0 ? m.width : e.width;
    return static_cast<int32_t>(ptx::ld_current_if(lengths != nullptr, lengths + batch, static_cast<uint32_t>(width)));
  }
  // The whole width of the index rows.
  __device__ __forceinline__ explicit Lengths(const DecodeArgs& a) : main(a.scope[0].width), extra(a.scope[1].width) {}

 private:
  static __device__ __forceinline__ int32_t length(const Scope& s, int32_t batch) {
    return static_cast<int32_t>(ptx::ld_current_if(s.lengths != nullptr, s.lengths + batch, static_cast<uint32_t>(s.width)));
  }
};

// How a token's rows are split. Known only to the device, like the lengths.
struct TokenRows {
  int32_t main, total;  // entries inside the length: of the first scope, of both
  int32_t tiles, tiles_per_split;

  // A token that is not split evenly.
  __device__ __forceinline__ TokenRows(int32_t main, int32_t total)
      : main(main), total(total), tiles((total + kRowTile - 1) / kRowTile), tiles_per_split(tiles) {}
  __device__ __forceinline__ TokenRows(const DecodeArgs& a, const Lengths& lengths) {
    main = min(max(lengths.main, 0), a.scope[0].width);
    total = main + min(max(lengths.extra, 0), a.scope[1].width);
    tiles = (total + kRowTile - 1) / kRowTile;
    tiles_per_split = a.tiles_per_split > 0 ? a.tiles_per_split : max(1, a.split_divisor.divide(tiles + a.num_splits - 1));
  }
  __device__ __forceinline__ bool are_of(const DecodeArgs& a, const Lengths& lengths) const {
    return main == min(max(lengths.main, 0), a.scope[0].width) && total == main + min(max(lengths.extra, 0), a.scope[1].width);
  }
  // Whether a split has rows. Split 0 always exists: an empty token has results too.
  __device__ __forceinline__ bool has(int32_t split) const { return split == 0 || split * tiles_per_split < tiles; }
  __device__ __forceinline__ bool is_cut() const { return tiles > tiles_per_split; }
};

// The entry at position `at` of a token's list, the second scope after the first; -1 after the end of this split.
struct RowList {
  const int32_t* indices[2];
  int32_t main, end;

  RowList() = default;
  __device__ RowList(const DecodeArgs& a, int32_t batch, int32_t query, const TokenRows& rows, int32_t end_tile)
      : main(rows.main), end(min(rows.total, end_tile * kRowTile)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      indices[i] = a.scope[i].indices + batch * a.scope[i].indices_batch_stride + query * a.scope[i].indices_query_stride;
    }
  }
  __device__ __forceinline__ int32_t slot(int32_t at) const {
    const int32_t* entry = at < main ? indices[0] + at : indices[1] + (at - main);
    return static_cast<int32_t>(ptx::ld_current_if(at < end, entry, 0xFFFFFFFFu));
  }
};

// Address of a row's bytes, from the 16 bytes of `quarter` on. Null: the entry is not attended. Fields are selected one by one, which keeps
// the arguments in constant memory.
template <KvFormat kFormat>
struct RowAddress {
  static constexpr int kRowBytes = static_cast<int>(row_data_bytes(kFormat, 0));
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;  // V4: at the end of the page; V3.2: within the row

  __device__ __forceinline__ RowAddress() {}
  __device__ __forceinline__ RowAddress(const DecodeArgs& a, bool in_main, int32_t slot, int quarter = 0) {
    const Scope &m = a.scope[0], &e = a.scope[1];
    if (static_cast<uint32_t>(slot) >= (in_main ? m.num_slots : e.num_slots)) return;
    const int32_t page = in_main ? m.page_size.divide(slot) : e.page_size.divide(slot);
    const int32_t page_size = in_main ? m.page_size.value() : e.page_size.value();
    const int32_t in_page = slot - page * page_size;
    const uint8_t* page_data = (in_main ? m.data : e.data) + page * (in_main ? m.page_stride : e.page_stride);
    data = page_data + (static_cast<int64_t>(in_page) * kRowBytes + 16 * quarter);
    scales = kFormat == KvFormat::fp8_ds_mla_v4 ? page_data + (static_cast<int64_t>(page_size) * kRowBytes + in_page * 8)
                                                : page_data + (static_cast<int64_t>(in_page) * kRowBytes + kMlaScaleOffset);
  }

  // Prefetches the row to L2, by the four threads of its quarters. Each line is requested once, because every lane of a prefetch uses the
  // L1 path separately. For V4 the line of the scales too; rows of V3.2 include their scales.
  __device__ __forceinline__ void prefetch(int quarter) const {
    constexpr int kLine = 128, kFirst = 4 * kLine;
    constexpr bool kV4 = kFormat == KvFormat::fp8_ds_mla_v4;
    static_assert(kRowBytes > kFirst + (kV4 ? 0 : kLine) && kRowBytes <= kFirst + kLine + (kV4 ? 0 : 16));
    if (data == nullptr) return;
    ptx::prefetch_l2(data + quarter * kLine);
    if (quarter < 2) ptx::prefetch_l2(kV4 && quarter == 1 ? scales : data + kFirst + quarter * kLine);
  }
};

}  // namespace strata::cuda::sparse_decode
