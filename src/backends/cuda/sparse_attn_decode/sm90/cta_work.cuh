// The work of a CTA of sparse decode: heads, token and rows.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/token_rows.cuh"

namespace strata::cuda::sparse_decode {

// How tokens' rows are split. even: evenly, combined by a later kernel. in_cluster: evenly, each split a CTA of a cluster that combines
// them (cluster_combine.cuh, few_heads_combine.cuh). scheduled: into the work items of a schedule (schedule.h); a later kernel combines
// those of a token with several.
enum class Cut : uint8_t { even, in_cluster, scheduled };

// The tiles of a CTA.
struct BlockTiles {
  int32_t first, end;

  __device__ __forceinline__ BlockTiles(const TokenRows& rows, int32_t split)
      : first(split * rows.tiles_per_split), end(min(rows.tiles, first + rows.tiles_per_split)) {}
  __device__ __forceinline__ BlockTiles(int32_t first, int32_t end) : first(first), end(end) {}
};

// Heads and token follow from the CTA's index, rows from the lengths.
template <Cut kCut>
struct CtaWork {
  int32_t token, batch, query, first_head;
  int32_t split;

  __device__ __forceinline__ CtaWork(const DecodeArgs& a, int32_t heads) {
    constexpr bool kInCluster = kCut == Cut::in_cluster;
    const int32_t head_tiles = (a.num_heads + heads - 1) / heads;
    const int32_t block = kInCluster ? a.split_divisor.divide(static_cast<int32_t>(blockIdx.x)) : static_cast<int32_t>(blockIdx.x);
    split = kInCluster ? static_cast<int32_t>(blockIdx.x) - block * a.num_splits : static_cast<int32_t>(blockIdx.y);
    token = divide(block, head_tiles), first_head = (block - token * head_tiles) * heads;
    batch = divide(token, a.num_queries), query = token - batch * a.num_queries;
  }

  __device__ __forceinline__ bool exists() const { return true; }

  // Valid before the preceding kernel has finished: the rows if every entry is inside its length.
  __device__ __forceinline__ TokenRows expected(const DecodeArgs& a) const { return TokenRows(a, Lengths(a)); }
  // After the preceding kernel has finished. Issues the loads of the lengths; rows() waits for them.
  __device__ __forceinline__ Lengths lengths(const DecodeArgs& a) const { return Lengths(a, batch); }
  __device__ __forceinline__ TokenRows rows(const DecodeArgs& a, const Lengths& lengths) const { return TokenRows(a, lengths); }
  __device__ __forceinline__ BlockTiles tiles(const TokenRows& rows) const { return BlockTiles(rows, split); }
  __device__ __forceinline__ bool has_work(const TokenRows& rows) const { return rows.has(split); }
  __device__ __forceinline__ bool is_split(const TokenRows& rows) const { return rows.is_cut(); }
};

// A CTA's row of the schedule. The split's results are at index `split` (split_index).
template <>
struct CtaWork<Cut::scheduled> {
  int32_t token, batch, query, first_head;
  int32_t split;
  int32_t split_id, first_row, end_row, main, all;
  struct NoLengths {};

  // Called by whole warps: each lane loads one field.
  __device__ __forceinline__ CtaWork(const DecodeArgs& a, int32_t heads) {
    constexpr int kFields = 8;
    const int32_t head_tiles = (a.num_heads + heads - 1) / heads, item = divide(static_cast<int32_t>(blockIdx.x), head_tiles);
    first_head = (static_cast<int32_t>(blockIdx.x) - item * head_tiles) * heads;
    const auto lane_field =
        static_cast<int32_t>(ptx::ld_current_if(true, a.work_items + int64_t{item} * kFields + threadIdx.x % kFields, 0));
    const auto field = [&](int i) { return __shfl_sync(~0u, lane_field, i); };
    token = field(0), split_id = field(1), first_row = field(2), end_row = field(3), main = field(4), all = field(5);
    split = split_id - token;
    batch = divide(token, a.num_queries), query = token - batch * a.num_queries;
  }

  __device__ __forceinline__ bool exists() const { return token >= 0; }
  __device__ __forceinline__ TokenRows expected(const DecodeArgs&) const { return TokenRows(main, all); }
  __device__ __forceinline__ NoLengths lengths(const DecodeArgs&) const { return {}; }
  __device__ __forceinline__ TokenRows rows(const DecodeArgs&, NoLengths) const { return TokenRows(main, all); }
  __device__ __forceinline__ BlockTiles tiles(const TokenRows&) const {
    return {first_row / kRowTile, (end_row + kRowTile - 1) / kRowTile};
  }
  __device__ __forceinline__ bool has_work(const TokenRows&) const { return true; }
  __device__ __forceinline__ bool is_split(const TokenRows&) const { return split_id >= 0; }
};

}  // namespace strata::cuda::sparse_decode
