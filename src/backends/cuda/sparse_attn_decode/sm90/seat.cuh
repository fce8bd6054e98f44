// What a block of sparse decode does: which heads of which token, and which of its rows.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/token_rows.cuh"

namespace strata::cuda::sparse_decode {

// How tokens' rows are cut: each evenly, into parts that a kernel behind merges; evenly, into parts that are the blocks of a cluster and
// merged by them (cluster_merge.cuh, few_heads_merge.cuh); into the pieces of a schedule (schedule.h), of which a kernel behind merges
// those that are parts.
enum class Cut : uint8_t { even, in_cluster, scheduled };

// The tiles of a block.
struct BlockTiles {
  int32_t first, end;

  __device__ __forceinline__ BlockTiles(const TokenRows& rows, int32_t split)
      : first(split * rows.tiles_per_split), end(min(rows.tiles, first + rows.tiles_per_split)) {}
  __device__ __forceinline__ BlockTiles(int32_t first, int32_t end) : first(first), end(end) {}
};

// Heads and token are those of the block's number; rows follow from lengths.
template <Cut kCut>
struct Seat {
  int32_t token, batch, query, first_head;
  int32_t split;

  __device__ __forceinline__ Seat(const DecodeArgs& a, int32_t heads) {
    constexpr bool kInCluster = kCut == Cut::in_cluster;
    const int32_t head_tiles = (a.num_heads + heads - 1) / heads;
    const int32_t block = kInCluster ? a.split_divisor.divide(static_cast<int32_t>(blockIdx.x)) : static_cast<int32_t>(blockIdx.x);
    split = kInCluster ? static_cast<int32_t>(blockIdx.x) - block * a.num_splits : static_cast<int32_t>(blockIdx.y);
    token = divide(block, head_tiles), first_head = (block - token * head_tiles) * heads;
    batch = divide(token, a.num_queries), query = token - batch * a.num_queries;
  }

  __device__ __forceinline__ bool exists() const { return true; }

  // Before the kernel in front has ended: if every entry is looked at.
  __device__ __forceinline__ TokenRows expected(const DecodeArgs& a) const { return TokenRows(a, Lengths(a)); }
  // Behind its end. Lengths are asked for, rows wait for them.
  __device__ __forceinline__ Lengths lengths(const DecodeArgs& a) const { return Lengths(a, batch); }
  __device__ __forceinline__ TokenRows rows(const DecodeArgs& a, const Lengths& lengths) const { return TokenRows(a, lengths); }
  __device__ __forceinline__ BlockTiles tiles(const TokenRows& rows) const { return BlockTiles(rows, split); }
  __device__ __forceinline__ bool has_work(const TokenRows& rows) const { return rows.has(split); }
  __device__ __forceinline__ bool is_part(const TokenRows& rows) const { return rows.is_cut(); }
};

// A block's row of the schedule. Its part is that of `split` (part_index).
template <>
struct Seat<Cut::scheduled> {
  int32_t token, batch, query, first_head;
  int32_t split;
  int32_t part, first_row, end_row, main, all;
  struct NoLengths {};

  // Whole warps, a field a lane.
  __device__ __forceinline__ Seat(const DecodeArgs& a, int32_t heads) {
    constexpr int kFields = 8;
    const int32_t head_tiles = (a.num_heads + heads - 1) / heads, piece = divide(static_cast<int32_t>(blockIdx.x), head_tiles);
    first_head = (static_cast<int32_t>(blockIdx.x) - piece * head_tiles) * heads;
    const auto of_lane = static_cast<int32_t>(ptx::ld_current_if(true, a.pieces + int64_t{piece} * kFields + threadIdx.x % kFields, 0));
    const auto field = [&](int i) { return __shfl_sync(~0u, of_lane, i); };
    token = field(0), part = field(1), first_row = field(2), end_row = field(3), main = field(4), all = field(5);
    split = part - token;
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
  __device__ __forceinline__ bool is_part(const TokenRows&) const { return part >= 0; }
};

}  // namespace strata::cuda::sparse_decode
