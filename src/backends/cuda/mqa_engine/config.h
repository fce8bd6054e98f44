// Shapes, shared memory and parameters of the Hopper kernel of sparse_attn_prefill.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "backends/cuda/device/logarithms.h"
#include "backends/cuda/device/warpgroup.cuh"

namespace strata::cuda::sparse_prefill {

inline constexpr int kHeadTile = 64;    // M of wgmma: the heads of one block
inline constexpr int kChunkLanes = 64;  // lanes of a swizzled 128-byte row
inline constexpr int kValueDim = 512;
inline constexpr int kStoredHeads = 16, kStoredChunks = 4;  // heads and chunks of lanes of a warp's sums: of a box of the output
inline constexpr int kStages = 3;
inline constexpr int kHeadChunkBytes = kHeadTile * kChunkLanes * 2;
inline constexpr int kSharedTiles = kStages - 1;  // of rows that stay for a second item, beside its queries

inline constexpr int kThreads = 4 * kWarpgroup;  // logits and softmax; left values; right values; producer
struct Registers {
  int logits, values, producer;
};
// Of a thread, where rows are bf16; where they are e4m3 codes (coded_rows.cuh), whose tiles are smaller.
inline constexpr Registers kRegisters{160, 160, 32}, kCodedRegisters{152, 160, 40};
constexpr bool fit(const Registers& r) { return r.logits + 2 * r.values + r.producer <= 65536 / kWarpgroup; }
static_assert(fit(kRegisters) && fit(kCodedRegisters));

// A block's turn is an item, or both items of a token that share their rows.
inline constexpr int32_t kRoundsInOrder = 2;  // of turns, then they are dealt: groups of SMs differ by 6 % in what they take for one
inline constexpr int kDealt = 4;              // turns dealt at most that some role has not begun; roles are less than 4 tiles apart

// Rows are 512 or 576 lanes, of which the first 512 are values. A tile is in parts, each in a slot of a ring; a stage is what else belongs
// to a tile. Three whole tiles fit of 64 rows of 512 lanes or 48 of 576: a slot holds one. Of 64 rows of 576 lanes they do not: a slot
// holds two chunks of the values, and the lanes behind these lie where the tile's weights will be.
template <int kDim, int kTileRows = 64>
struct Shape {
  static constexpr int kRows = kTileRows;
  static constexpr int kChunks = kDim / kChunkLanes, kValueChunks = kValueDim / kChunkLanes;
  static constexpr bool kTail = kRows == kHeadTile && (kChunks > kValueChunks);
  static constexpr int kChunkBytes = kRows * kChunkLanes * 2;
  static constexpr int kRegisterChunks = 6;  // of the queries, the others are in shared memory
  static constexpr int kSharedChunks = kChunks - kRegisterChunks;
  static constexpr int kParts = kTail ? 4 : 1, kPartChunks = (kTail ? kValueChunks : kChunks) / kParts, kSlots = kTail ? 11 : kStages;
  static constexpr int kPartReaders = kTail ? 1 : 2;        // value warpgroups that read a part
  static constexpr int kFills = kTail ? 2 : 1;              // a tile is there in so many steps, the last of which is its last part
  static constexpr int kWeightTiles = kTail ? kStages : 2;  // tiles of weights in shared memory
  static constexpr int kQueryTiles = (kHeadTile + kRows - 1) / kRows;  // that the queries of 64 heads take on their way
  static constexpr int kRowsPerWarp = kRows / 4;                       // of a producer warp
  struct Plan {};                                                      // of a block's items: none here
};

template <class S>
struct alignas(1024) SharedMemory {
  uint8_t k[S::kSlots][S::kPartChunks][S::kChunkBytes];  // bf16, rows are gathered rows, or heads of q on their way
  uint8_t q[S::kSharedChunks][kHeadChunkBytes];          // bf16, rows are heads
  uint8_t weights[S::kWeightTiles][kHeadChunkBytes];     // bf16, [head][gathered row]; before, the lanes of a tile behind its values
  float rescale[S::kWeightTiles][kHeadTile];             // what the sums of values are multiplied by before this tile
  float normalizer[2][kHeadTile];                        // of items in turns: what the sums become the output by
  float sink[2 * kHeadTile];                             // of a token's heads, in base 2
  uint16_t attended[kStages][kWarpgroup / 32];           // bit i of word w: row kRowsPerWarp * w + i is attended
  uint64_t full[kStages][S::kFills], empty[S::kSlots];
  uint64_t normalizer_full[2];
  uint64_t dealt[kDealt];
  int32_t dealt_turn[kDealt];
  uint64_t rescale_full[S::kWeightTiles], weights_full[S::kWeightTiles], weights_empty[S::kWeightTiles];
  typename S::Plan plan;
};
static_assert(sizeof(SharedMemory<Shape<512>>) <= 232448 && sizeof(SharedMemory<Shape<576>>) <= 232448, "227 KB a block");

// An item is 64 heads of one token. Source says which rows a token attends to: GatheredRows (gathered_rows.cuh) or PagedRows
// (sparse_attn_decode/sm90/bf16/paged_rows.cuh).
template <class Source>
struct TokenArgs : Source {
  static constexpr bool kMappedOut = !Source::kCodes;  // out_map is of out, where that is aligned: its boxes take a stage of 64 rows
  int32_t num_items, items_per_token_log2;
  int32_t num_heads;
  const uint16_t* q;  // bf16
  int64_t q_token_stride, q_head_stride;
  const float* sink;  // null: none
  float scale_log2;   // softmax_scale * log2(e), times the scale of codes
  uint16_t* out;      // bf16
  int64_t out_token_stride, out_head_stride;
  float* lse;  // null: not wanted
  typename Source::SumsStride lse_stride;
  int64_t lse_head_stride;
  float* max_logits;
  typename Source::SumsStride max_stride;
  int64_t max_head_stride;
  bool rows_aligned;  // rows of q and of the source start at multiples of 16 bytes
  bool out_aligned;   // those of out: out_map is of out, in boxes of kStoredHeads heads and kStoredChunks chunks
  CUtensorMap out_map;

  __device__ __forceinline__ float& lse_of(int64_t token, int64_t head) const {
    return lse[this->sums_offset(token, lse_stride) + head * lse_head_stride];
  }
  __device__ __forceinline__ float& max_of(int64_t token, int64_t head) const {
    return max_logits[this->sums_offset(token, max_stride) + head * max_head_stride];
  }
};

// An item is a part of that, of so many tiles. [split, token, head]: what a part adds up to as fp16, what each half of the lanes is to be
// multiplied by to be its result, its lse and maximum in base 2. Of a part without rows the latter two are there: -inf.
template <class Source>
struct PartArgs : TokenArgs<Source> {
  static constexpr bool kSparse = true;
  int32_t num_tokens, num_splits, tiles_per_split;
  uint16_t* part_out;
  float2* part_factors;
  float *part_lse, *part_max;
};

// Whole tokens, and parts of others before them.
template <class Source>
struct WholeArgs : TokenArgs<Source> {
  PartArgs<Source> parts;
  int32_t turns_in_order;  // those behind them are dealt
  uint32_t* next_turn;     // the first block's to set
  int32_t keeping_items;   // the first ones, whose rows are made the last to leave L2 until the end; 0: none
};

// Of a head.
inline constexpr int64_t kPartBytes = kValueDim * sizeof(uint16_t) + sizeof(float2) + 2 * sizeof(float);

}  // namespace strata::cuda::sparse_prefill
