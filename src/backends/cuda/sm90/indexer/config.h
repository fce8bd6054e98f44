// Shapes of Hopper's logits kernel, and what it is launched with.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/common/divisor.h"

namespace strata::cuda::sm90 {

inline constexpr int kTileRows = 64;  // of the cache: a page is a whole number of tiles
inline constexpr int kIndexerDim = 128;
inline constexpr int kPrefillWarpgroups = 4;
inline constexpr int kPrefillSlots = 14;     // tiles of a block in flight
inline constexpr int kDecodeWarpgroups = 3;  // of an SM: one block's, or three small blocks'
// Small blocks find room beside a product that runs at the same time. They are for many tokens, and for so few tiles that no SM has two;
// rows that are longer want what large ones have.
inline constexpr int64_t kSmallBlocksTokens = 9, kSmallBlocksRows = 16384;
inline constexpr int kDecodeSlots = 4;       // tiles of a warpgroup in flight
inline constexpr int kDecodeRegisters = 96;  // a thread: beside them there is room for a block of the selection

struct LogitsArgs {
  CUtensorMap rows_map;  // of the cache: pages, rows
  const uint8_t* q;      // [num_tokens, heads, 128]
  const float* weights;  // [num_tokens, heads]
  const uint8_t* cache;
  int32_t page_stride;
  int32_t scales_offset;  // within a page
  Divisor page_tiles;     // tiles of a page
  const int32_t* block_table;
  int64_t table_stride, table_entries;  // elements between requests, and up to the end of the last one
  const int32_t* token_to_req;
  const int32_t* lengths;
  int32_t skip;
  float* logits;
  int64_t logits_stride;
  float* maxima;  // nullptr: nobody wants them
  int64_t maxima_stride;
  int64_t num_tokens;
  Divisor parts;  // of the work, one after another
  int heads;
};

}  // namespace strata::cuda::sm90
