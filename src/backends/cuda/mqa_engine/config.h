// Shapes, shared memory and parameters of the Hopper attention kernel over bf16 rows.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "backends/cuda/device/logarithms.h"
#include "backends/cuda/device/warpgroup.cuh"

namespace strata::cuda::sparse_prefill {

inline constexpr int kHeadTile = 64;   // M of wgmma: heads of a CTA
inline constexpr int kChunkDims = 64;  // dimensions of a swizzled 128-byte row
inline constexpr int kValueDim = 512;
inline constexpr int kStoredHeads = 16, kStoredChunks = 4;  // heads and chunks of a warp's sums: a box of the output's tensor map
inline constexpr int kStages = 3;
inline constexpr int kHeadChunkBytes = kHeadTile * kChunkDims * 2;
inline constexpr int kSharedTiles = kStages - 1;  // tiles of rows that stay for a second item, in addition to its queries

inline constexpr int kThreads = 4 * kWarpgroup;  // logits and softmax; left values; right values; producer
struct Registers {
  int logits, values, producer;
};
// Registers per thread: for bf16 rows, and for e4m3 rows (quantized_rows.cuh), whose tiles are smaller.
inline constexpr Registers kRegisters{160, 160, 32}, kQuantizedRegisters{152, 160, 40};
constexpr bool fit(const Registers& r) { return r.logits + 2 * r.values + r.producer <= 65536 / kWarpgroup; }
static_assert(fit(kRegisters) && fit(kQuantizedRegisters));

// A CTA's iteration is an item, or both items of a token that share their rows.
inline constexpr int32_t kStaticIterations = 2;  // iterations in fixed order, then dynamic: GPCs differ by 6 % in their time
inline constexpr int kWorkQueueSlots = 4;        // most dynamic iterations that some role has not begun; roles are less than 4 tiles apart

// Rows have 512 or 576 dimensions, of which the first 512 are values. A tile consists of one or more slots of a ring; a stage is what else
// belongs to a tile. Three whole tiles of 64 rows of 512 dimensions, or 48 of 576, fit: a slot holds a tile. Tiles of 64 rows of 576 do not
// fit: a slot then holds two chunks of the values, and the last 64 dimensions lie where the tile's weights will be.
template <int kDim, int kTileRows = 64>
struct Shape {
  static constexpr int kRows = kTileRows;
  static constexpr int kChunks = kDim / kChunkDims, kValueChunks = kValueDim / kChunkDims;
  static constexpr bool kTail = kRows == kHeadTile && (kChunks > kValueChunks);
  static constexpr int kChunkBytes = kRows * kChunkDims * 2;
  static constexpr int kRegisterChunks = 6;  // of the queries; the other chunks are in shared memory
  static constexpr int kSharedChunks = kChunks - kRegisterChunks;
  static constexpr int kTileSlots = kTail ? 4 : 1, kSlotChunks = (kTail ? kValueChunks : kChunks) / kTileSlots,
                       kSlots = kTail ? 11 : kStages;
  static constexpr int kSlotReaders = kTail ? 1 : 2;                   // value warpgroups that read a slot
  static constexpr int kFills = kTail ? 2 : 1;                         // barrier phases in which a tile arrives; the last is its last slot
  static constexpr int kWeightTiles = kTail ? kStages : 2;             // tiles of weights in shared memory
  static constexpr int kQueryTiles = (kHeadTile + kRows - 1) / kRows;  // tiles that the queries of 64 heads occupy in the ring
  static constexpr int kRowsPerWarp = kRows / 4;                       // of a producer warp
  struct Plan {};                                                      // of a CTA's items: none here
};

template <class S>
struct alignas(1024) SharedMemory {
  uint8_t k[S::kSlots][S::kSlotChunks][S::kChunkBytes];  // bf16, rows are gathered rows, or heads of q in transit
  uint8_t q[S::kSharedChunks][kHeadChunkBytes];          // bf16, rows are heads
  uint8_t weights[S::kWeightTiles][kHeadChunkBytes];     // bf16, [head][gathered row]; before that, a tile's dimensions after its values
  float rescale[S::kWeightTiles][kHeadTile];             // factor of the sums of values before this tile
  float normalizer[2][kHeadTile];                        // of alternate items: factor from sums to the output
  float sink[2 * kHeadTile];                             // of a token's heads, base 2
  uint16_t attended[kStages][kWarpgroup / 32];           // bit i of word w: row kRowsPerWarp * w + i is attended
  uint64_t full[kStages][S::kFills], empty[S::kSlots];
  uint64_t normalizer_full[2];
  uint64_t work_ready[kWorkQueueSlots];
  int32_t work_queue[kWorkQueueSlots];
  uint64_t rescale_full[S::kWeightTiles], weights_full[S::kWeightTiles], weights_empty[S::kWeightTiles];
  typename S::Plan plan;
};
static_assert(sizeof(SharedMemory<Shape<512>>) <= 232448 && sizeof(SharedMemory<Shape<576>>) <= 232448, "227 KB a block");

// An item is 64 heads of one token. Source determines the rows that a token attends to: GatheredRows (gathered_rows.cuh) or PagedRows
// (sparse_attn_decode/sm90/bf16/paged_rows.cuh).
template <class Source>
struct TokenArgs : Source {
  static constexpr bool kMappedOut = !Source::kQuantized;  // out_map describes out, if that is aligned: its boxes take a stage of 64 rows
  int32_t num_items, items_per_token_log2;
  int32_t num_heads;
  const uint16_t* q;  // bf16
  int64_t q_token_stride, q_head_stride;
  const float* sink;  // null: none
  float scale_log2;   // softmax_scale * log2(e), times the scale of e4m3 values
  uint16_t* out;      // bf16
  int64_t out_token_stride, out_head_stride;
  float* lse;  // null: not written
  typename Source::SumsStride lse_stride;
  int64_t lse_head_stride;
  float* max_logits;
  typename Source::SumsStride max_stride;
  int64_t max_head_stride;
  bool rows_aligned;  // rows of q and of the source are 16-byte aligned
  bool out_aligned;   // rows of out are 16-byte aligned: out_map describes out, in boxes of kStoredHeads heads and kStoredChunks chunks
  CUtensorMap out_map;

  __device__ __forceinline__ float& lse_of(int64_t token, int64_t head) const {
    return lse[this->sums_offset(token, lse_stride) + head * lse_head_stride];
  }
  __device__ __forceinline__ float& max_of(int64_t token, int64_t head) const {
    return max_logits[this->sums_offset(token, max_stride) + head * max_head_stride];
  }
};

// An item is one split of tiles_per_split tiles. [split, token, head]: the split's sums as fp16, the factor of each half of the dimensions
// that gives its result, and its lse and maximum in base 2. A split without rows has only the latter two: -inf.
template <class Source>
struct SplitArgs : TokenArgs<Source> {
  static constexpr bool kSparse = true;
  int32_t num_tokens, num_splits, tiles_per_split;
  uint16_t* split_out;
  float2* split_factors;
  float *split_lse, *split_max;
};

// Whole tokens, and before them splits of other tokens.
template <class Source>
struct WholeArgs : TokenArgs<Source> {
  SplitArgs<Source> splits;
  int32_t static_iterations;  // later iterations are assigned dynamically
  uint32_t* next_iteration;   // initialised by the first CTA
  int32_t keeping_items;      // the first items, whose rows are kept in L2 longest until the end; 0: none
};

// Bytes per head and split.
inline constexpr int64_t kSplitBytes = kValueDim * sizeof(uint16_t) + sizeof(float2) + 2 * sizeof(float);

}  // namespace strata::cuda::sparse_prefill
